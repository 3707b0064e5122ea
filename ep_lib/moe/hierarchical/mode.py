"""Hierarchical mode: launches the kernels that send a token to another node once, and hand it on there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.operation import Launch, Made, Operation, Part, Slot, struct
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo, describe
from ep_lib.moe.agreement import require_same_everywhere
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.hierarchical.memory import (
    KINDS_OF_BLOCKS,
    allocate,
    make_hierarchical_map,
    make_hierarchical_sizes,
    packet_bytes,
    warps_per_block,
    weight_bytes,
)
from ep_lib.moe.memory import address_of
from ep_lib.moe.mode import DispatchOptions, Payload
from ep_lib.moe.pcie.mode import (
    NicBarrier,
    RingsMode,
    RingsRouting,
    count_parts,
    counted,
    declare_layout,
    made_rows,
    parts,
    sent_tokens,
)
from ep_lib.require import whole_number
from ep_lib.runtime.rank import Rank


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep_hierarchical_<name>``, with template arguments if it has any (``"<float>"``)."""
    file = {"send_weights": "combine", "combine": "combine", "dispatch": "dispatch"}.get(name, "exchange_nodes")
    return library_kernel(f"moe/hierarchical/{file}.cu", f"ep_hierarchical_{name}{template}")


class HierarchicalMode(RingsMode):
    """The :class:`ep_lib.moe.mode.Mode` of ``Buffer(hierarchical=True)`` on several nodes."""

    # idx and index: [num_tokens, top_k] and [num_tokens, ranks] of <moe/common/layout.cuh>, node_index: the same for
    # nodes; plan: of exchange_nodes.cu; forwards: [tokens from partners, ranks of the node], their rows, see
    # dispatch.cu; received: [2, ranks], zeros, then rows from each source, as copy_epilogue.cu reads them
    memory_map = staticmethod(make_hierarchical_map)
    routing = ("idx", "index", "node_index", "plan", "forwards", "received")

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        """Collective. Raises ArgumentError, RankMismatchError and OutOfSymmetricMemory."""
        assert config.ranks_per_node is not None
        sizes = make_hierarchical_sizes(config)
        require_same_everywhere(rank, config)
        memory = allocate(rank, config)
        super().__init__(rank, config, sizes, memory, NicBarrier(rank, config, memory, 1), config.ranks_per_node)
        self._mates = config.ranks_per_node
        self._broken = rank.to_device(np.zeros(1, np.uint32))
        # sends and receives [nodes, channels + 1], first_forward [nodes], first_rows [ranks of the node, ranks]
        lengths = (config.nodes * (sizes.channels + 1),) * 2 + (config.nodes, self._mates * config.world_size)
        self._plan_lengths = lengths
        self._routing_parts: list[str | Part] = ["idx", "index", "node_index", *parts("plan", lengths), "forwards"]
        self._exchange = self._declare_exchange()

    def _route(self, known: tuple[ArrayInfo, ...], received: Array) -> RingsRouting:
        rank, nodes, (idx, index, ranks_plan) = self._rank, self._config.nodes, known
        node_index, plan = self._exchange.run(idx, ranks_plan, idx.shape[0], self.epoch)
        sends = self._plan_lengths[0]
        rank._backend.synchronize()
        receives = np.array(plan[sends : 2 * sends].tolist()).reshape(nodes, -1)[:, -1]
        handed_on = int(receives.sum() - receives[rank.rank // self._mates])
        forwards = rank._backend.empty(self._memory.kind, (handed_on, self._mates), INT32)
        by_source = rank._backend.copy_of(np.stack([np.zeros_like(received), received]))
        self._nic_barrier.streams.settle()
        arrays = idx, index, describe(node_index), describe(plan), forwards, describe(by_source)
        return RingsRouting(idx.owner, arrays, handed_on)

    def _declare_exchange(self) -> Operation:
        """The exchange of counts between partners and within the node: tokens for each node, and the places of rows."""
        config, at, threads = self._config, self._at, self._nic_barrier.threads
        args = struct(
            "moe/hierarchical/exchange_nodes.cu",
            "ExchangeNodesArgs",
            rings=self._rings(),
            inbox=at["partner_inbox"],
            outbox=at["partner_outbox"],
            signals=at["partner_signals"],
            tables=at["tables"],
            node_signals=at["node_signals"],
            epoch="epoch",
            message_bytes=self._memory.parts["partner_inbox"].shape[-1],
            num_tokens="tokens",
        )
        first_row = self._nic_barrier.plan_parts[2]._replace(array="ranks_plan")
        length = sum(self._plan_lengths)
        node_counts = count_parts(config, config.nodes, length)[0]
        slots = (args, "index", node_counts, first_row, "plan")
        return Operation(
            self._rank,
            ("idx", "ranks_plan", "tokens", "epoch"),
            [
                declare_layout(kernel("layout"), config, config.nodes, threads, length, config.nodes),
                Launch(kernel("exchange_nodes"), 1, threads, slots),
            ],
            counted(config, self._memory.kind, config.nodes, length),
        )

    def _declare_send(
        self, payload: Payload, weights: ArrayInfo | None, options: DispatchOptions, *, with_routing: bool
    ) -> Operation:
        """The dispatch: to the rows of this node's ranks, and from there to the caller's arrays."""
        config, at, index = self._config, self._at, options.ids
        makes = made_rows(payload, weights, config)
        row_bytes, num_scales = config.row_bytes, 0
        if payload.scales is not None:
            row_bytes, num_scales = config.hidden, payload.scales.shape[1]
        area = header_struct("moe/hierarchical/dispatch.cu", "ReceiveArea")
        args = struct(
            "moe/hierarchical/dispatch.cu",
            "DispatchArgs",
            rings=self._rings(),
            area=area.pack(**{name: at[name] for name in area.names}),
            num_tokens="tokens",
            row_bytes=row_bytes,
            scale_bytes=4 * num_scales,
            packet_bytes=packet_bytes(
                row_bytes,
                4 * num_scales,
                config.top_k,
                ranks_per_node=self._mates,
                with_routing=with_routing,
                with_weights=weights is not None,
            ),
            top_k=config.top_k if with_routing or weights is not None else 0,  # 0: rows and scales alone travel
            experts_per_rank=config.experts_per_rank,
            with_routing=int(with_routing),
            with_weights=int(weights is not None),
        )
        if with_routing:
            makes.append(Made("topk", index.kind, ("rows", config.top_k), index.dtype))
            makes += [Made(name, index.kind, ("rows",), INT32) for name in ("src_rank", "src_token")]
        names = {of.name for of in makes}
        slots: tuple[Slot, ...] = (
            args,
            sent_tokens("moe/hierarchical/dispatch.cu"),
            *self._routing_parts[1:],
        )
        wanted = ("x", "scales", "topk", "weights", "src_rank", "src_token")
        launches = [
            self._declare("dispatch", slots, config.num_sms),
            self._node_barrier("stored"),
            self._copy([name if name in names else None for name in wanted], row_bytes, index.dtype),
        ]
        return Operation(self._rank, self._given_to_send, launches, makes)

    def _declare_combine(self, kind: str, weighted: bool) -> Operation:
        config = self._config
        routing = "moe/hierarchical/combine.cu", "NodeRouting"
        args = struct(
            "moe/hierarchical/combine.cu",
            "CombineArgs",
            rings=self._rings(),
            rows=self._at["rows"],
            num_tokens="tokens",
            row_vectors="row_vectors",
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            weight_bytes=weight_bytes(config),
        )
        knows = dict(zip(header_struct(*routing).names, self._routing_parts, strict=True))
        given: tuple[Slot, ...] = (args, struct(*routing, **knows))
        makes = [Made("out", kind, ("tokens", "columns"), config.dtype)]
        launches = [self._copy([self._at["rows"], *(None,) * 5]), self._node_barrier("staged")]
        blocks = config.num_sms // KINDS_OF_BLOCKS * 2
        theirs = None
        if weighted:
            theirs = "theirs"
            makes.append(Made(theirs, self._memory.kind, ("forwarded", weight_bytes(config) // 4), FLOAT32))
            launches.append(self._declare("send_weights", (*given, theirs, "weights"), blocks))
        adding = "combine<__nv_bfloat16>" if config.dtype == BFLOAT16 else "combine<float>"
        launches.append(self._declare(adding, (*given, "out", theirs, "weights"), blocks))
        return Operation(self._rank, self._given_to_combine, launches, makes)

    def _copy(self, to: Sequence[Slot], row_bytes: int = 0, index: np.dtype[Any] = INT32) -> Launch:
        """Copies a dispatch's rows of ``row_bytes`` to the caller's arrays, or a combine's rows to where mates read
        them."""
        config, at = self._config, self._at
        args = struct(
            "moe/direct/copy_epilogue.cu",
            "CopyEpilogueArgs",
            rows=at["rows"] if row_bytes else "x",
            **{name: at[name] for name in ("scales", "topk", "weights", "source")},
            broken=address_of(self._broken),
            capacity="rows",
            row_vectors=row_bytes // VECTOR_BYTES or "row_vectors",
            row_scales=self._memory.parts["scales"].shape[1],
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
        )
        which = library_kernel(
            "moe/direct/copy_epilogue.cu", f"ep_copy_epilogue<{'int' if index == INT32 else 'long long'}>"
        )
        return Launch(which, config.num_sms, self._nic_barrier.threads, (args, "received", *to))

    def _node_barrier(self, name: str) -> Launch:
        threads = -(-self._mates // WARP) * WARP
        return Launch(kernel(name), 1, threads, (self._at["node_signals"], self._mates, "epoch"))

    def _declare(self, name: str, slots: tuple[Slot, ...], blocks: int) -> Launch:
        name, bracket, template = name.partition("<")
        return Launch(kernel(name, bracket + template), blocks, warps_per_block() * WARP, slots)


def find_ranks_per_node(rank: Rank, given: int | None) -> int:
    """Collective: how many consecutive ranks form a node. ``given``, or None: those that reach each other's memory by
    loads and stores, as the ranks of a host do.

    Raises ArgumentError where ranks of a node would not reach each other, or where nodes are not alike.
    """
    ranks = rank.world_size
    if given is not None:
        given = whole_number("ranks_per_node", given, 1, ranks)
    told = rank.all_gather((given, [peer for peer in range(ranks) if rank._backend.reaches(peer)]))
    if len({theirs for theirs, _ in told}) > 1:
        listing = ", ".join(f"rank {r}: {theirs}" for r, (theirs, _) in enumerate(told))
        raise RankMismatchError(f"the ranks pass different ranks_per_node: {listing}; pass the same everywhere")
    reached = [peers for _, peers in told]
    size = len(reached[0]) if given is None else given
    if ranks % size:
        raise ArgumentError(
            f"{ranks} ranks do not fill nodes of {size}; "
            + ("pass ranks_per_node, a divisor" if given is None else "ranks_per_node must be a divisor")
        )
    for r, peers in enumerate(reached):
        node = set(range(r // size * size, r // size * size + size))
        missing = sorted(node - set(peers))
        if missing:
            raise ArgumentError(
                f"hierarchical mode wants nodes of {size} consecutive ranks that load and store in each other's "
                f"memory, but rank {r} does not reach rank {missing[0]}: it reaches {peers}. Start ranks host by host, "
                "as many on each, or pass a smaller ranks_per_node"
            )
    return size

"""Hierarchical mode: launches the kernels that send a token to another node once, and hand it on there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo
from ep_lib.moe.agreement import Tag, require_same_everywhere
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.expert_rows import ExpertRows
from ep_lib.moe.hierarchical.memory import (
    KINDS_OF_BLOCKS,
    allocate,
    make_hierarchical_sizes,
    packet_bytes,
    warps_per_block,
    weight_bytes,
)
from ep_lib.moe.memory import address_of, sync_current_stream
from ep_lib.moe.mode import Arrivals, DispatchOptions, Payload, Plan
from ep_lib.moe.pcie.mode import (
    COMBINE,
    DISPATCH,
    NicBarrier,
    RingsMode,
    get_dispatch_layout,
    pack_addresses,
    split,
)
from ep_lib.reference import FP8
from ep_lib.require import whole_number
from ep_lib.runtime.rank import Rank

_WARP = 32
_LOCAL_THREADS = {"emulator": 64, "cuda": 512}  # of a block that copies within the rank's memory


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep_hierarchical_<name>``, with template arguments if it has any (``"<float>"``)."""
    file = {"send_weights": "combine", "combine": "combine", "dispatch": "dispatch"}.get(name, "exchange_nodes")
    return library_kernel(f"moe/hierarchical/{file}.cu", f"ep_hierarchical_{name}{template}")


class HierarchicalRouting(NamedTuple):
    """Where this rank's tokens go, where its rows come from, and what it hands on: int32 arrays that kernels read."""

    topk_idx: Array  # [num_tokens, top_k]: global expert ids
    send_index: Array  # [num_tokens, ranks]: see <moe/common/layout.cuh>
    node_index: Array  # [num_tokens, nodes]: the same for nodes
    sends: Array  # [nodes, channels + 1]: see exchange_nodes.cu
    receives: Array
    first_forward: Array  # [nodes]
    first_rows: Array  # [ranks of the node, ranks]
    forwards: Array  # [tokens from partners, ranks of the node]: their rows, see dispatch.cu
    received: Array  # [2, ranks]: zeros, then rows from each source, as copy_epilogue.cu reads them


class HierarchicalMode(RingsMode):
    """The :class:`ep_lib.moe.mode.Mode` of ``Buffer(hierarchical=True)`` on several nodes."""

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        """Collective. Raises ArgumentError, RankMismatchError and OutOfSymmetricMemory."""
        assert config.ranks_per_node is not None
        sizes = make_hierarchical_sizes(config)
        require_same_everywhere(rank, config)
        memory = allocate(rank, config, sizes)
        super().__init__(rank, config, sizes, memory, NicBarrier(rank, config, memory, 1), config.ranks_per_node)
        self._mates = config.ranks_per_node
        self._broken = rank.to_device(np.zeros(1, np.uint32))

    def dispatch(
        self, payload: Payload, experts: ArrayInfo, weights: ArrayInfo | None, content: int, options: DispatchOptions
    ) -> tuple[HierarchicalRouting, Plan, Arrivals | None]:
        """Count and send. No Arrivals if ``content`` differs between ranks: nothing was sent then."""
        rank, config, nic_barrier = self._rank, self._config, self._nic_barrier
        topk_idx, *counted = get_dispatch_layout(rank, config, nic_barrier.threads, experts.owner)
        ranks_plan = rank.empty(nic_barrier.plan_length, np.int32)
        tags = nic_barrier.begin(DISPATCH, self.epoch, content, len(topk_idx), counted, ranks_plan)
        plan = nic_barrier.plan_of(tags, ranks_plan)
        if not nic_barrier.agreed():
            nic_barrier.in_step = True
            nothing = [rank.empty(0, np.int32)] * (len(HierarchicalRouting._fields) - 2)
            return HierarchicalRouting._make([topk_idx, counted[0], *nothing]), plan, None
        node_index, node_counts = self._count_nodes(topk_idx)
        told = self._exchange_nodes(node_index, node_counts, nic_barrier.split_plan(ranks_plan)[2])
        host = rank.to_host(told[1]).reshape(config.nodes, -1)
        here = rank.rank // self._mates
        handed_on = int(host[:, -1].sum() - host[here, -1])
        received = rank.to_device(np.stack([np.zeros_like(plan.received), plan.received]))
        forwards = rank.empty((handed_on, self._mates), np.int32)
        routing = HierarchicalRouting._make([topk_idx, counted[0], node_index, *told, forwards, received])
        arrivals = self._send(payload, weights, routing, int(plan.received.sum()), options, with_routing=True)
        nic_barrier.in_step = True
        return routing, plan, arrivals

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: HierarchicalRouting,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo] = (),
        async_finish: bool = False,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; None if tags differ between ranks."""
        config, rank = self._config, self._rank
        self._nic_barrier.begin(COMBINE, self.epoch, tag.number)
        out = None
        if self._nic_barrier.agreed():
            columns = x.shape[1]
            vectors = columns * config.dtype.itemsize // VECTOR_BYTES
            to = (self._memory.array[self._memory.parts["rows"].offset :], *(None,) * 5)
            self._copy(x.shape[0], vectors, routing, rows=x.address, to=to, uses=(x,))
            self._node_barrier("staged")
            out = rank._backend.empty(x.kind, (len(routing.send_index), columns), config.dtype)
            args = header_struct("moe/hierarchical/combine.cu", "CombineArgs").pack(
                rings=self._rings(),
                rows=self._at["rows"],
                num_tokens=len(routing.send_index),
                row_vectors=vectors,
                top_k=config.top_k,
                experts_per_rank=config.experts_per_rank,
                weight_bytes=weight_bytes(config),
            )
            packed = pack_addresses(header_struct("moe/hierarchical/combine.cu", "NodeRouting"), routing[:-1])
            theirs = None
            if weights is not None:
                theirs = rank.empty((len(routing.forwards), weight_bytes(config) // 4), np.float32)
                self._launch("send_weights", "", args, packed, theirs, weights, uses=routing)
            template = "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"
            self._launch("combine", template, args, packed, out, theirs, weights, uses=routing)
            rank.synchronize()
        self._nic_barrier.in_step = True
        return out

    # How it is done

    def _count_nodes(self, topk_idx: Array) -> tuple[Array, Array]:
        """How many earlier tokens go to each node ``[num_tokens, nodes]``, and tokens for each ``[nodes]``."""
        rank, config, nodes = self._rank, self._config, self._config.nodes
        experts = config.experts_per_rank * self._mates
        node_index, node_counts = rank.empty((len(topk_idx), nodes), np.int32), rank.empty(nodes, np.int32)
        kernel("layout").launch(
            rank,
            min(nodes, config.num_sms),
            self._nic_barrier.threads,
            header_struct("moe/common/layout.cuh", "LayoutArgs").pack(
                num_tokens=len(topk_idx), top_k=config.top_k, experts_per_rank=experts
            ),
            topk_idx,
            node_index,
            node_counts,
            rank.empty(config.num_experts, np.int32),
            nodes,
            shared_bytes=4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + experts),
        )
        return node_index, node_counts

    def _exchange_nodes(self, node_index: Array, node_counts: Array, first_row: Array) -> list[Array]:
        """Between partners and within the node: sends, receives, first_forward, first_rows."""
        rank, config, at = self._rank, self._config, self._at
        counts = config.nodes * (self._sizes.channels + 1)
        lengths = (counts, counts, config.nodes, self._mates * config.world_size)
        plan = rank.empty(sum(lengths), np.int32)
        args = header_struct("moe/hierarchical/exchange_nodes.cu", "ExchangeNodesArgs").pack(
            rings=self._rings(),
            inbox=at["partner_inbox"],
            outbox=at["partner_outbox"],
            signals=at["partner_signals"],
            tables=at["tables"],
            node_signals=at["node_signals"],
            epoch=self.epoch,
            message_bytes=self._memory.parts["partner_inbox"].shape[-1],
            num_tokens=len(node_index),
        )
        kernel("exchange_nodes").launch(
            rank, 1, self._nic_barrier.threads, args, node_index, node_counts, first_row, plan
        )
        return split(plan, *lengths)

    def _send(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: HierarchicalRouting,
        rows: int,
        options: DispatchOptions,
        *,
        with_routing: bool,
    ) -> Arrivals:
        """Launch what brings all rows of this node to their ranks, and wait for it."""
        config, at, empty, index = self._config, self._at, self._rank._backend.empty, options.ids
        row_bytes, num_scales, dtype = config.row_bytes, 0, config.dtype
        if payload.scales is not None:
            row_bytes, num_scales, dtype = config.hidden, payload.scales.shape[1], FP8
        beside = config.top_k if with_routing or weights is not None else 0  # 0: rows and scales alone travel
        area = header_struct("moe/hierarchical/dispatch.cu", "ReceiveArea")
        args = header_struct("moe/hierarchical/dispatch.cu", "DispatchArgs").pack(
            rings=self._rings(),
            area=area.pack(**{name: at[name] for name in area.names}),
            num_tokens=len(routing.send_index),
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
            top_k=beside,
            experts_per_rank=config.experts_per_rank,
            with_routing=int(with_routing),
            with_weights=int(weights is not None),
        )
        sync_current_stream(self._rank)
        sent = (payload.x, payload.scales, routing.topk_idx, weights)
        tokens = pack_addresses(header_struct("moe/hierarchical/dispatch.cu", "Tokens"), sent)
        self._launch("dispatch", "", args, tokens, *routing[1:-1], uses=sent)
        self._node_barrier("stored")

        x = empty(payload.x.kind, (rows, config.hidden), dtype)
        scales = None if payload.scales is None else empty(payload.scales.kind, (rows, num_scales), FLOAT32)
        kept = None if weights is None else empty(weights.kind, (rows, config.top_k), FLOAT32)
        topk = src_rank = src_token = None
        if with_routing:
            topk = empty(index.kind, (rows, config.top_k), index.dtype)
            src_rank, src_token = empty(index.kind, (rows,), INT32), empty(index.kind, (rows,), INT32)
        vectors = row_bytes // VECTOR_BYTES
        self._copy(rows, vectors, routing, to=(x, scales, topk, kept, src_rank, src_token), index=index.dtype)
        self._rank.synchronize()
        return Arrivals(x, scales, topk, kept, src_rank, src_token)

    def _copy(
        self,
        capacity: int,
        row_vectors: int,
        routing: HierarchicalRouting,
        *,
        to: Sequence[Array | None],
        rows: int = 0,
        index: np.dtype[Any] = INT32,
        uses: Sequence[ArrayInfo] = (),
    ) -> None:
        """What a dispatch brought to arrays of the caller's own; or, with ``rows``, rows from there."""
        config, at = self._config, self._at
        args = header_struct("moe/direct/copy_epilogue.cu", "CopyEpilogueArgs").pack(
            rows=rows or at["rows"],
            scales=at["scales"],
            topk=at["topk"],
            weights=at["weights"],
            source=at["source"],
            broken=address_of(self._broken),
            capacity=capacity,
            row_vectors=row_vectors,
            row_scales=self._memory.parts["scales"].shape[1],
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
        )
        template = "<int>" if index == INT32 else "<long long>"
        library_kernel("moe/direct/copy_epilogue.cu", f"ep_copy_epilogue{template}").launch(
            self._rank, config.num_sms, _LOCAL_THREADS[self._rank.backend], args, routing.received, *to, uses=uses
        )

    def _node_barrier(self, name: str) -> None:
        threads = -(-self._mates // _WARP) * _WARP
        signals = np.uint64(self._at["node_signals"])
        kernel(name).launch(self._rank, 1, threads, signals, self._mates, self.epoch)

    def _launch(self, name: str, template: str, *args: Any, uses: Any = ()) -> None:
        blocks = self._config.num_sms
        if name != "dispatch":
            blocks = blocks // KINDS_OF_BLOCKS * 2
        kernel(name, template).launch(
            self._rank,
            blocks,
            warps_per_block() * _WARP,
            *args,
            uses=tuple(array for array in uses if array is not None),
        )


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

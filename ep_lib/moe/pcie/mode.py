"""PCIe mode: launches the kernels that send everything through NICs and bounce buffers of fixed size."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.operation import Launch, Made, Operation, Part, Slot, Struct, struct
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo, describe, like
from ep_lib.moe.agreement import Tag, name_ranks, require_same_everywhere
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.event import Event
from ep_lib.moe.formats import FP8, FP8_FLOAT32
from ep_lib.moe.memory import ModeMemory, address_of
from ep_lib.moe.mode import Arrivals, DispatchOptions, ExpertRows, Payload, Plan
from ep_lib.moe.pcie.memory import PcieSizes, allocate, check_resident, make_pcie_map, make_pcie_sizes, packet_bytes
from ep_lib.runtime.rank import Rank

_MAX_THREADS = 512  # __launch_bounds__ of the kernels
_RINGS_PER_WARP = 8  # on the emulator, where a wait for one of more rings is slow

_INSTEAD = {  # what to do instead of each option that only direct mode has
    "num_worst_tokens": "waits for the counts on the host; leave it out",
    "sorted_by_expert": "has none; sort by recv.topk_idx",
    "column_major_scales": "has none; transpose a copy of the scales",
    "quantize": "casts nothing on its way; leave it out, or dispatch FP8 rows with their scales",
    "bias": "has none; add it to the result",
    "sum_order": "adds up in the order of ranks; leave it out",
}

# The content of a tag, from the lowest bit: the kind of operation, then the caller's arguments.
DISPATCH, DISPATCH_AGAIN, COMBINE = range(3)
_NAMES = ("dispatch", "dispatch with a handle", "combine")
_KIND_BITS, _CONTENT_BITS = 2, 8


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep_pcie_<name>``, with template arguments if it has any (``"<float>"``)."""
    file = "exchange_counts" if name == "finish" else name
    return library_kernel(f"moe/pcie/{file}.cu", f"ep_pcie_{name}{template}")


class RingsRouting(NamedTuple):
    """Where this rank's tokens go and where its rows come from, as arrays for kernels."""

    topk_idx: Array  # int32 [num_tokens, top_k]: global expert ids
    arrays: tuple[ArrayInfo, ...]  # int32, beginning with topk_idx; the mode's ``routing`` has their names
    forwarded: int = 0  # tokens of other nodes that this rank passes on


class NicBarrier:
    """The start of every operation: a barrier of all ranks through the NIC, in which they exchange tags, and before a
    dispatch how many rows each sends."""

    def __init__(self, rank: Rank, config: BufferConfig, memory: ModeMemory, channels: int) -> None:
        """``memory`` has the parts of :func:`ep_lib.moe.pcie.memory.exchange_parts`."""
        self._rank, self._config, self._memory, self._channels = rank, config, memory, channels
        self.streams = rank.streams
        self._tags = rank.to_device(np.zeros(config.world_size, np.uint64))
        self._contents = [0] * config.world_size  # the content in each rank's tag
        self.mismatched: list[tuple[int, int]] = []  # ranks whose tag differs from ours, and the differing bits
        self.in_step = True  # False while an operation is under way, and after one that failed
        self.threads = 64 if rank._backend.costly_threads else _MAX_THREADS  # per block that counts or copies
        ranks, kind = config.world_size, memory.kind
        # sends and receives [ranks, channels + 1], first_row [ranks], choices of this rank's experts
        self._lengths = (ranks * (channels + 1),) * 2 + (ranks, config.experts_per_rank)
        self.plan_parts = parts("plan", self._lengths)
        self._alone = Operation(rank, ("tag", "epoch"), [self._declare(with_counts=False)])
        layout = library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout")
        self._counting = Operation(
            rank,
            ("tag", "epoch", "idx", "tokens"),
            [declare_layout(layout, config, ranks, self.threads, sum(self._lengths)), self._declare(with_counts=True)],
            counted(config, kind, ranks, sum(self._lengths)),
        )

    def _declare(self, *, with_counts: bool) -> Launch:
        args = struct(
            "moe/pcie/exchange_counts.cu",
            "ExchangeArgs",
            **{name: self._memory.at[name] for name in ("inbox", "outbox", "signals")},
            epoch="epoch",
            tag="tag",
            message_bytes=self._memory.parts["inbox"].shape[-1],
            channels=self._channels,
            num_tokens="tokens" if with_counts else 0,
            experts_per_rank=self._config.experts_per_rank,
            with_counts=int(with_counts),
        )
        given: tuple[Slot, ...] = (None,) * 3
        if with_counts:
            given = ("index", *count_parts(self._config, self._config.world_size, sum(self._lengths)))
        slots = (args, *given, address_of(self._tags), "plan" if with_counts else None)
        return Launch(kernel("exchange_counts"), 1, self.threads, slots)

    def begin(self, kind: int, epoch: int, content: int, topk: ArrayInfo | None = None) -> Sequence[Array]:
        """Raises RankMismatchError if the ranks call different operations. With ``topk`` [tokens, top_k] it counts
        first, and returns send_index and the plan of exchange_counts.cu, which is meaningless if ranks are
        :attr:`mismatched`."""
        self.in_step = False
        tag = kind | content << _KIND_BITS
        self.streams.settle()
        if topk is None:
            made = self._alone.run(tag, epoch)
        else:
            made = self._counting.run(tag, epoch, topk, topk.shape[0])
        self._rank._backend.synchronize()
        told = self._tags.tolist()
        self._contents, self.mismatched = [content] * len(told), []
        if told.count(tag) < len(told):
            if len({theirs & (1 << _KIND_BITS) - 1 for theirs in told}) > 1:
                self.in_step = True  # all ranks raise this error
                raise _different_operations(told)
            self._contents = [theirs >> _KIND_BITS & (1 << _CONTENT_BITS) - 1 for theirs in told]
            self.mismatched = [(r, (theirs ^ tag) >> _KIND_BITS) for r, theirs in enumerate(told) if theirs != tag]
        return made

    def plan_of(self, plan: Array) -> Plan:
        """The Plan from the ints of exchange_counts.cu; zeros unless all ranks' tags are equal."""
        ranks = self._config.world_size
        length = sum(self._lengths)
        told = np.array([0] * length if self.mismatched else plan[:length].tolist(), np.int32)
        received = told[self._lengths[0] :][: self._lengths[1]].reshape(ranks, -1)[:, -1]
        return Plan(received.copy(), self._contents, told[-self._config.experts_per_rank :].copy())

    def finish(self) -> None:
        """Wait until all that this rank has posted is done, if it is in step with the others."""
        if self.in_step:
            kernel("finish").launch(self._rank, 1, WARP)
            self._rank._backend.synchronize()


class RingsMode(ABC):
    """The common part of modes that send through the rings of <moe/pcie/rings.cuh> and wait for every operation."""

    checks_values = False
    routing: ClassVar[tuple[str, ...]]  # the names that operations have for a routing's arrays

    def __init__(
        self,
        rank: Rank,
        config: BufferConfig,
        sizes: PcieSizes,
        memory: ModeMemory,
        nic_barrier: NicBarrier,
        stride: int = 1,
    ) -> None:
        """``stride``: rings lead to the ranks at a distance of 1, 2, ... times this."""
        self._rank, self._config, self._sizes, self._stride = rank, config, sizes, stride
        self._memory, self._at, self._nic_barrier = memory, memory.at, nic_barrier
        rings = (sizes.channels, config.world_size // stride - 1)
        self._sent = rank.to_device(np.zeros(rings, np.uint64))
        self._taken = rank.to_device(np.zeros(rings, np.uint64))
        self._readers: Array | None = None  # Rings::readers, in a mode whose warps share a combine's messages
        self._operations: dict[Any, Operation] = {}  # one for each kind of call
        self.device = memory.device
        self.epoch = 0
        self.broken = np.zeros(1, np.uint32)  # the host waits for every operation and raises what went wrong

    def begin_anew(self, masked: Collection[int]) -> NoReturn:
        """Raises ArgumentError: no rank can be left out here."""
        raise ArgumentError(f"mask_ranks and connect_ranks: {self._config.mode_name} has no masks; make a new Buffer")

    @property
    def meeting_place(self) -> int:
        """Raises what :meth:`begin_anew` raises."""
        self.begin_anew(())

    def waits(self, async_finish: bool) -> bool:
        """Always."""
        return True

    def is_combine_input(self, x: ArrayInfo) -> bool:
        """Never: there is no such memory."""
        return False

    def combine_input(self, like: Array, num_rows: int) -> Array:
        """Raises ArgumentError."""
        raise ArgumentError(f"combine_input: {self._config.mode_name} has no such memory")

    def close(self, orderly: bool = True) -> None:
        """Wait until all that this rank has posted is done, then free the symmetric memory."""
        if not self._rank.is_closed:
            self._nic_barrier.finish()
            self._memory.free()

    def dispatch(
        self, payload: Payload, experts: ArrayInfo, weights: ArrayInfo | None, content: int, options: DispatchOptions
    ) -> tuple[RingsRouting | None, Plan, Arrivals | None]:
        """Count and send. No routing and no Arrivals if ``content`` differs between ranks: nothing was sent then."""
        self._refuse_options(payload, options)
        # Kernels know one type of index. The copy is the handle's own: the caller may overwrite the array.
        topk = self._rank._backend.empty(self._memory.kind, experts.shape, INT32)
        topk.owner[...] = experts.owner if experts.kind == topk.kind else like(topk.kind, experts.owner)
        send_index, ranks_plan = self._nic_barrier.begin(DISPATCH, self.epoch, content, topk)
        plan = self._nic_barrier.plan_of(ranks_plan)
        routing = arrivals = None
        if not self._nic_barrier.mismatched:
            routing = self._route((topk, describe(send_index), describe(ranks_plan)), plan.received)
            arrivals = self._send(payload, weights, routing, int(plan.received.sum()), options, with_routing=True)
        self._nic_barrier.in_step = True
        return routing, plan, arrivals

    def dispatch_again(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: Any,
        num_rows: int,
        tag: int,
        options: DispatchOptions,
        by_expert: ExpertRows | None = None,
    ) -> Arrivals | None:
        """Send as an earlier dispatch did, which brought ``num_rows`` rows; None if tags differ between ranks."""
        self._refuse_options(payload, options)
        self._nic_barrier.begin(DISPATCH_AGAIN, self.epoch, tag)
        arrivals = None
        if not self._nic_barrier.mismatched:
            arrivals = self._send(payload, weights, routing, num_rows, options, with_routing=False)
        self._nic_barrier.in_step = True
        return arrivals

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: RingsRouting,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo] = (),
        async_finish: bool = False,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
        by_choice: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; None if tags differ between ranks."""
        self._refuse(bias=bias, quantize=as_fp8, sum_order=by_choice)
        self._nic_barrier.begin(COMBINE, self.epoch, tag.number)
        out = None
        if not self._nic_barrier.mismatched:
            key = x.kind, weights is not None
            operation = self._operations.get(key)
            if operation is None:
                operation = self._operations[key] = self._declare_combine(*key)
            (rows, columns), tokens = x.shape, routing.arrays[0].shape[0]
            vectors = columns * self._config.dtype.itemsize // VECTOR_BYTES
            sizes = tokens, rows, columns, vectors, routing.forwarded
            out, *_held = operation.run(x, weights, *routing.arrays, *sizes, self.epoch)
            self._rank._backend.synchronize()
        self._nic_barrier.in_step = True
        return out

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation: it has passed, since the host waits for every one here."""
        kind = describe(array).kind
        return Event(self._rank, self._rank.streams.current(kind), kind, keep)

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """The ranks whose tag differs from ours, and the differing bits."""
        return self._nic_barrier.mismatched

    def _refuse_options(self, payload: Payload, options: DispatchOptions) -> None:
        form = payload.form
        if options.num_worst_tokens or options.sorted_by_expert or options.column_major_scales or payload.cast:
            self._refuse(
                num_worst_tokens=options.num_worst_tokens,
                sorted_by_expert=options.sorted_by_expert,
                column_major_scales=options.column_major_scales,
                quantize=payload.cast,
            )
        if form is not None and form.code != FP8_FLOAT32:
            raise ArgumentError(
                f"x has {form.name}: {self._config.mode_name} carries FP8 rows with float32 scales only, or "
                f"{self._config.dtype.name}"
            )

    def _refuse(self, **asked: Any) -> None:
        """Raises ArgumentError for an option that only direct mode has."""
        for name, value in asked.items():
            if value:
                raise ArgumentError(f"{name}: {self._config.mode_name} {_INSTEAD[name]}")

    @abstractmethod
    def _route(self, known: tuple[ArrayInfo, ...], received: Array) -> RingsRouting:
        """``known``: topk_idx, send_index, and the plan of exchange_counts.cu; ``received``: rows from each source."""

    @abstractmethod
    def _declare_send(
        self, payload: Payload, weights: ArrayInfo | None, options: DispatchOptions, *, with_routing: bool
    ) -> Operation:
        """The operation that brings such rows to this rank; its values are those that :meth:`_send` passes."""

    @abstractmethod
    def _declare_combine(self, kind: str, weighted: bool) -> Operation:
        """The operation that makes an array of ``kind`` for the sums and adds up rows; its values are those that
        :meth:`combine` passes."""

    def _arrivals(self, made: dict[str, Array], ids: ArrayInfo) -> Arrivals:
        """The Arrivals from the arrays that an operation of _declare_send has made. ``ids``: the caller's."""
        known = made.get
        return Arrivals(
            made["x"], known("scales"), known("topk"), known("weights"), known("src_rank"), known("src_token")
        )

    def _send(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: RingsRouting,
        rows: int,
        options: DispatchOptions,
        *,
        with_routing: bool,
    ) -> Arrivals:
        """Launch the operation that brings ``rows`` rows to this rank, and wait for it."""
        scales, ids = payload.scales, options.ids
        key = (
            payload.x.kind,
            None if scales is None else (scales.kind, scales.shape[1]),
            None if weights is None else weights.kind,
            (ids.kind, ids.dtype) if with_routing else None,
        )
        operation = self._operations.get(key)
        if operation is None:
            declared = self._declare_send(payload, weights, options, with_routing=with_routing)
            operation = self._operations[key] = declared
        arrays = operation.run(payload.x, scales, weights, *routing.arrays, payload.x.shape[0], rows, self.epoch)
        self._rank._backend.synchronize()
        return self._arrivals(dict(zip(operation.made, arrays, strict=True)), ids)

    @property
    def _given_to_send(self) -> tuple[str, ...]:
        return ("sent", "sent_scales", "sent_weights", *self.routing, "tokens", "rows", "epoch")

    @property
    def _given_to_combine(self) -> tuple[str, ...]:
        return ("x", "weights", *self.routing, "tokens", "rows", "columns", "row_vectors", "forwarded", "epoch")

    def _rings(self) -> bytes:
        return header_struct("moe/pcie/rings.cuh", "Rings").pack(
            **{name: self._at[name] for name in ("staging", "slots", "arrived", "credits")},
            sent=address_of(self._sent),
            taken=address_of(self._taken),
            readers=0 if self._readers is None else address_of(self._readers),
            channels=self._sizes.channels,
            num_slots=self._sizes.num_slots,
            slot_bytes=self._sizes.slot_bytes,
            merged=int(self._config.merge_sender_receiver),
            stride=self._stride,
        )


class PcieMode(RingsMode):
    """The :class:`ep_lib.moe.mode.Mode` of ``Buffer(allow_nvlink_for_normal_mode=False)``."""

    memory_map = staticmethod(make_pcie_map)
    routing = ("idx", "index", "plan")

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        """Collective. Raises ArgumentError, RankMismatchError and OutOfSymmetricMemory."""
        sizes = make_pcie_sizes(config)
        if rank.sm_count is not None:
            check_resident(config.num_sms, rank.sm_count)
        require_same_everywhere(rank, config)
        memory = allocate(rank, config, sizes)
        super().__init__(rank, config, sizes, memory, NicBarrier(rank, config, memory, sizes.channels))
        readers = (sizes.channels, config.world_size - 1, sizes.num_slots)
        self._readers = rank.to_device(np.zeros(readers, np.uint32))

    def _route(self, known: tuple[ArrayInfo, ...], received: Array) -> RingsRouting:
        return RingsRouting(known[0].owner, known)

    def _declare_combine(self, kind: str, weighted: bool) -> Operation:
        config = self._config
        args = struct(
            "moe/pcie/combine.cu",
            "CombineArgs",
            rings=self._rings(),
            num_tokens="tokens",
            row_vectors="row_vectors",
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
        )
        most = self._threads // WARP * header_constant("moe/pcie/rings.cuh", "kMaxPcieRanks")
        launch = Launch(
            kernel("combine", "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"),
            config.num_sms,
            self._threads,
            (args, "out", "x", "idx", "weights", "index", *self._nic_barrier.plan_parts[:3]),
            most * header_struct("moe/common/layout.cuh", "RowPtr").size,
        )
        return Operation(
            self._rank, self._given_to_combine, [launch], [Made("out", kind, ("tokens", "columns"), config.dtype)]
        )

    @property
    def _threads(self) -> int:
        """Threads of a block that sends: enough warps for the rings of a channel, at most a block's maximum."""
        tasks = 2 if self._config.merge_sender_receiver else 1
        if not self._rank._backend.costly_threads:
            return _MAX_THREADS
        warps = max(2, -(-(self._config.world_size - 1) // _RINGS_PER_WARP))
        return min(tasks * warps * WARP, _MAX_THREADS)

    def _declare_send(
        self, payload: Payload, weights: ArrayInfo | None, options: DispatchOptions, *, with_routing: bool
    ) -> Operation:
        """The dispatch kernel, which ends when all rows for this rank have arrived."""
        config, own = self._config, self._memory.kind
        makes = made_rows(payload, weights, config)
        row_bytes, scale_bytes = config.row_bytes, 0
        if payload.scales is not None:
            row_bytes, scale_bytes = config.hidden, 4 * payload.scales.shape[1]
        if with_routing:
            makes += [Made("topk", own, ("rows", config.top_k), INT32), Made("source", own, ("rows", 2), INT32)]
        top_k = config.top_k if with_routing or weights is not None else 0  # 0: rows alone travel
        args = struct(
            "moe/pcie/dispatch.cu",
            "DispatchArgs",
            rings=self._rings(),
            num_tokens="tokens",
            row_bytes=row_bytes,
            scale_bytes=scale_bytes,
            packet_bytes=packet_bytes(row_bytes, scale_bytes, top_k),
            top_k=top_k,
            experts_per_rank=config.experts_per_rank,
        )
        to = dict.fromkeys(("rows", "scales", "topk", "weights", "source"))
        to |= {"rows" if of.name == "x" else of.name: of.name for of in makes}
        slots: tuple[Slot, ...] = (
            args,
            sent_tokens("moe/pcie/dispatch.cu"),
            struct("moe/pcie/dispatch.cu", "Arrivals", **to),
            "index",
            *self._nic_barrier.plan_parts[:3],
        )
        launch = Launch(kernel("dispatch"), config.num_sms, self._threads, slots)
        return Operation(self._rank, self._given_to_send, [launch], makes)

    def _arrivals(self, made: dict[str, Array], ids: ArrayInfo) -> Arrivals:
        if "source" in made:
            source, topk = made["source"], made["topk"].astype(ids.dtype)
            of_ids = {"topk": topk, "src_rank": source[:, 0].copy(), "src_token": source[:, 1].copy()}
            made |= {name: like(ids.kind, array) for name, array in of_ids.items()}
            self._rank.streams.settle()
        return super()._arrivals(made, ids)


def _different_operations(tags: list[int]) -> RankMismatchError:
    doing: dict[int, list[int]] = {}
    for r, tag in enumerate(tags):
        doing.setdefault(tag & (1 << _KIND_BITS) - 1, []).append(r)
    who = " but ".join(f"{_NAMES[kind]} on {name_ranks(ranks)}" for kind, ranks in sorted(doing.items()))
    return RankMismatchError(f"the ranks call different operations: {who}; call the same ones in the same order")


def declare_layout(
    which: Kernel, config: BufferConfig, destinations: int, threads: int, plan_length: int, *more: Slot
) -> Launch:
    """The kernel of <moe/common/layout.cuh>: counts the tokens of "idx" for ``destinations`` ranks or nodes."""
    experts = config.num_experts // destinations
    sizes = {"top_k": config.top_k, "experts_per_rank": experts}
    args = struct("moe/common/layout.cuh", "LayoutArgs", num_tokens="tokens", **sizes)
    shared_bytes = 4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + experts)
    slots = (args, "idx", "index", *count_parts(config, destinations, plan_length), *more)
    return Launch(which, min(destinations, config.num_sms), threads, slots, shared_bytes)


def counted(config: BufferConfig, kind: str, destinations: int, plan_length: int) -> list[Made]:
    """The arrays of :func:`declare_layout`, and the plan of the exchange that follows."""
    length = plan_length + destinations + config.num_experts
    return [Made("index", kind, ("tokens", destinations), INT32), Made("plan", kind, (length,), INT32)]


def count_parts(config: BufferConfig, destinations: int, plan_length: int) -> list[Part]:
    """Tokens for each destination and choices of each expert, which lie behind the plan."""
    return parts("plan", (plan_length, destinations, config.num_experts))[1:]


def made_rows(payload: Payload, weights: ArrayInfo | None, config: BufferConfig) -> list[Made]:
    """The caller's arrays for such rows."""
    x, scales = payload.x, payload.scales
    makes = [Made("x", x.kind, ("rows", config.hidden), config.dtype if scales is None else FP8)]
    if scales is not None:
        makes.append(Made("scales", scales.kind, ("rows", scales.shape[1]), FLOAT32))
    if weights is not None:
        makes.append(Made("weights", weights.kind, ("rows", config.top_k), FLOAT32))
    return makes


def sent_tokens(file: str) -> Struct:
    """``Tokens`` of a dispatch kernel."""
    return struct(file, "Tokens", rows="sent", scales="sent_scales", topk_idx="idx", weights="sent_weights")


def parts(array: str, lengths: Sequence[int]) -> list[Part]:
    """Consecutive parts of an array of int32."""
    ends = np.cumsum(lengths).tolist()
    return [Part(array, INT32.itemsize * (end - length)) for end, length in zip(ends, lengths, strict=True)]

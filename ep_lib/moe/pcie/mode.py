"""PCIe mode: launches the kernels that send everything through NICs and bounce buffers of fixed size."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import RankMismatchError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import HeaderStruct, header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo, as_kind, describe, like
from ep_lib.moe.agreement import Tag, name_ranks, require_same_everywhere
from ep_lib.moe.config import VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.expert_rows import ExpertRows
from ep_lib.moe.event import Event
from ep_lib.moe.memory import ModeMemory, address_of, sync_current_stream
from ep_lib.moe.mode import Arrivals, DispatchOptions, Payload, Plan, kind_of
from ep_lib.moe.pcie.memory import PcieSizes, allocate, check_resident, make_pcie_sizes, packet_bytes
from ep_lib.reference import FP8
from ep_lib.runtime.rank import Rank

_WARP = 32
_MAX_THREADS = 512  # __launch_bounds__ of the kernels
_RINGS_PER_WARP = 8  # on the emulator: more than that, and a wait for any of them is slow there
_EXCHANGE_THREADS = {"emulator": 64, "cuda": 512}

# What a tag says, from the lowest bit: which operation, then what the caller passed.
DISPATCH, DISPATCH_AGAIN, COMBINE = range(3)
_NAMES = ("dispatch", "dispatch with a handle", "combine")
_KIND_BITS, _CONTENT_BITS = 2, 8


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep_pcie_<name>``, with template arguments if it has any (``"<float>"``)."""
    file = "exchange_counts" if name == "finish" else name
    return library_kernel(f"moe/pcie/{file}.cu", f"ep_pcie_{name}{template}")


class PcieRouting(NamedTuple):
    """Where this rank's tokens go and where its rows come from: int32 arrays in memory that kernels read."""

    topk_idx: Array  # [num_tokens, top_k]: global expert ids
    send_index: Array  # [num_tokens, ranks]: see <moe/common/layout.cuh>
    sends: Array  # [ranks, channels + 1]: see exchange_counts.cu
    receives: Array  # [ranks, channels + 1]
    first_row: Array  # [ranks]


class NicBarrier:
    """The start of every operation: a barrier of all ranks through the NIC, in which they exchange tags, and before a
    dispatch how many rows each sends."""

    def __init__(self, rank: Rank, config: BufferConfig, memory: ModeMemory, channels: int) -> None:
        """``memory`` has the parts of :func:`ep_lib.moe.pcie.memory.exchange_parts`."""
        self._rank, self._config, self._memory, self._channels = rank, config, memory, channels
        self._tags = rank.to_device(np.zeros(config.world_size, np.uint64))
        self._tag = 0
        self.in_step = True  # False while an operation is under way, and after one that failed

    @property
    def threads(self) -> int:
        """Of a block that counts."""
        return _EXCHANGE_THREADS[self._rank.backend]

    @property
    def plan_length(self) -> int:
        """Numbers that a dispatch is told: see :meth:`split_plan`."""
        return sum(self._plan_lengths)

    @property
    def _plan_lengths(self) -> tuple[int, ...]:
        ranks = self._config.world_size
        return (ranks * (self._channels + 1),) * 2 + (ranks, self._config.experts_per_rank)

    def split_plan(self, plan: Array) -> list[Array]:
        """sends and receives ``[ranks, channels + 1]``, first_row ``[ranks]``, choices of this rank's experts."""
        sends, receives, *rest = split(plan, *self._plan_lengths)
        return [sends.reshape(-1, self._channels + 1), receives.reshape(-1, self._channels + 1), *rest]

    def begin(
        self,
        kind: int,
        epoch: int,
        content: int,
        num_tokens: int = 0,
        counted: Sequence[Array] = (),
        plan: Array | None = None,
    ) -> Array:
        """Returns the tags of all ranks, in host memory. Raises RankMismatchError if they call other operations."""
        self.in_step = False
        self._tag = kind | content << _KIND_BITS
        at = self._memory.at
        args = header_struct("moe/pcie/exchange_counts.cu", "ExchangeArgs").pack(
            inbox=at["inbox"],
            outbox=at["outbox"],
            signals=at["signals"],
            epoch=epoch,
            tag=self._tag,
            message_bytes=self._memory.parts["inbox"].shape[-1],
            channels=self._channels,
            num_tokens=num_tokens,
            experts_per_rank=self._config.experts_per_rank,
            with_counts=int(bool(counted)),
        )
        sync_current_stream(self._rank)
        send_index, rank_counts, expert_counts = counted or (None, None, None)
        kernel("exchange_counts").launch(
            self._rank, 1, self.threads, args, send_index, rank_counts, expert_counts, self._tags, plan
        )
        tags = self._rank.to_host(self._tags)
        if len({int(theirs) & (1 << _KIND_BITS) - 1 for theirs in tags}) > 1:
            self.in_step = True  # all ranks see it
            raise _different_operations(tags)
        return tags

    def agreed(self) -> bool:
        """Whether all ranks' tags are alike."""
        return not self.mismatched_ranks()

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """Wait for all kernels; the ranks whose tag differs from ours, and in what bits."""
        tags = self._rank.to_host(self._tags)
        differing = ((r, int(tag) ^ self._tag) for r, tag in enumerate(tags))
        return [(r, bits >> _KIND_BITS) for r, bits in differing if bits]

    def plan_of(self, tags: Array, plan: Array) -> Plan:
        """What a dispatch has told this rank, which means nothing unless all have agreed."""
        told = self._rank.to_host(plan) if self.agreed() else np.zeros(self.plan_length, np.int32)
        _, receives, _, tokens = self.split_plan(told)
        contents = [int(tag) >> _KIND_BITS & (1 << _CONTENT_BITS) - 1 for tag in tags]
        return Plan(receives[:, -1].copy(), contents, tokens.copy())

    def finish(self) -> None:
        """Wait until all that this rank has posted is done, if it is in step with the others."""
        if self.in_step:
            kernel("finish").launch(self._rank, 1, _WARP)
            self._rank.synchronize()


class RingsMode(ABC):
    """What modes have in common that send through the rings of <moe/pcie/rings.cuh> and wait for every operation."""

    checks_values = False

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
        self._readers: Array | None = None  # a mode whose warps share the messages of a combine has them
        self.device = memory.device
        self.epoch = 0
        self.broken = np.zeros(1, np.uint32)  # the host waits for every operation and raises what went wrong

    def close(self) -> None:
        """Wait until all that this rank has posted is done, then free the symmetric memory."""
        if not self._rank.is_closed:
            self._nic_barrier.finish()
            self._memory.free()

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
        self._nic_barrier.begin(DISPATCH_AGAIN, self.epoch, tag)
        arrivals = None
        if self._nic_barrier.agreed():
            arrivals = self._send(payload, weights, routing, num_rows, options, with_routing=False)
        self._nic_barrier.in_step = True
        return arrivals

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation: it has passed, since the host waits for every one here."""
        kind = kind_of(array)
        return Event(self._rank, self._rank.streams.current(kind), kind, keep)

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """Wait for all kernels; the ranks whose tag differs from ours, and in what bits."""
        return self._nic_barrier.mismatched_ranks()

    @abstractmethod
    def _send(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: Any,
        rows: int,
        options: DispatchOptions,
        *,
        with_routing: bool,
    ) -> Arrivals:
        """Launch what brings ``rows`` rows to this rank, and wait for it."""

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
        is_bits = config.dtype == BFLOAT16 and self._memory.kind == "cupy"
        self._storage_dtype = np.dtype(np.uint16) if is_bits else config.dtype

    def dispatch(
        self, payload: Payload, experts: ArrayInfo, weights: ArrayInfo | None, content: int, options: DispatchOptions
    ) -> tuple[PcieRouting, Plan, Arrivals | None]:
        """Count and send. No Arrivals if ``content`` differs between ranks: nothing was sent then."""
        config, nic_barrier = self._config, self._nic_barrier
        topk_idx, *counted = get_dispatch_layout(self._rank, config, nic_barrier.threads, experts.owner)
        device_plan = self._rank.empty(nic_barrier.plan_length, np.int32)
        tags = nic_barrier.begin(DISPATCH, self.epoch, content, len(topk_idx), counted, device_plan)
        sends, receives, first_row, _ = nic_barrier.split_plan(device_plan)
        routing = PcieRouting(topk_idx, counted[0], sends, receives, first_row)
        arrivals, plan = None, nic_barrier.plan_of(tags, device_plan)
        if nic_barrier.agreed():
            arrivals = self._send(payload, weights, routing, int(plan.received.sum()), options, with_routing=True)
        nic_barrier.in_step = True
        return routing, plan, arrivals

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: PcieRouting,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo] = (),
        async_finish: bool = False,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; None if tags differ between ranks."""
        config = self._config
        self._nic_barrier.begin(COMBINE, self.epoch, tag.number)
        out = None
        if self._nic_barrier.agreed():
            width = x.shape[1]
            out = self._rank.empty((len(routing.send_index), width), self._storage_dtype)
            args = header_struct("moe/pcie/combine.cu", "CombineArgs").pack(
                rings=self._rings(),
                num_tokens=len(routing.send_index),
                row_vectors=width * config.dtype.itemsize // VECTOR_BYTES,
                top_k=config.top_k,
                experts_per_rank=config.experts_per_rank,
            )
            template = "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"
            arrays = (out, x, routing.topk_idx, weights, *routing[1:])
            most = self._threads // _WARP * header_constant("moe/pcie/rings.cuh", "kMaxPcieRanks")
            shared_bytes = most * header_struct("moe/common/layout.cuh", "RowPtr").size
            self._launch("combine", template, args, *arrays, shared_bytes=shared_bytes)
        self._nic_barrier.in_step = True
        if out is None:
            return None
        self._rank.synchronize()
        return as_kind(x.kind, out, config.dtype)

    # How it is done

    @property
    def _threads(self) -> int:
        """Of a block of the sending kernels: enough warps for the rings of a channel, within what a block may have."""
        tasks = 2 if self._config.merge_sender_receiver else 1
        if self._rank.backend == "cuda":
            return _MAX_THREADS
        warps = max(2, -(-(self._config.world_size - 1) // _RINGS_PER_WARP))
        return min(tasks * warps * _WARP, _MAX_THREADS)

    def _send(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: PcieRouting,
        rows: int,
        options: DispatchOptions,
        *,
        with_routing: bool,
    ) -> Arrivals:
        """Launch the dispatch kernel, which ends when all rows for this rank have arrived, and wait for it."""
        config, rank = self._config, self._rank
        row_bytes, scale_bytes = config.row_bytes, 0
        rows_dtype, scales = self._storage_dtype, None
        if payload.scales is not None:
            row_bytes, scale_bytes = config.hidden, 4 * payload.scales.shape[1]
            rows_dtype = np.dtype(np.uint8)
            scales = rank.empty((rows, payload.scales.shape[1]), np.float32)
        arrived = (
            rank.empty((rows, config.hidden), rows_dtype),
            scales,
            rank.empty((rows, config.top_k), np.int32) if with_routing else None,
            rank.empty((rows, config.top_k), np.float32) if weights is not None else None,
            rank.empty((rows, 2), np.int32) if with_routing else None,
        )
        top_k = config.top_k if with_routing or weights is not None else 0  # 0: rows alone travel
        args = header_struct("moe/pcie/dispatch.cu", "DispatchArgs").pack(
            rings=self._rings(),
            num_tokens=len(routing.send_index),
            row_bytes=row_bytes,
            scale_bytes=scale_bytes,
            packet_bytes=packet_bytes(row_bytes, scale_bytes, top_k),
            top_k=top_k,
            experts_per_rank=config.experts_per_rank,
        )
        sent = (payload.x, payload.scales, routing.topk_idx, weights)
        tokens = pack_addresses(header_struct("moe/pcie/dispatch.cu", "Tokens"), sent)
        to = pack_addresses(header_struct("moe/pcie/dispatch.cu", "Arrivals"), arrived)
        self._launch("dispatch", "", args, tokens, to, *routing[1:], uses=(*sent, *arrived))
        rank.synchronize()
        return self._as_callers_arrays(arrived, payload, weights, options)

    def _as_callers_arrays(
        self, arrived: Any, payload: Payload, weights: ArrayInfo | None, options: DispatchOptions
    ) -> Arrivals:
        """Arrays of the caller's kinds."""
        rows, scales, topk, sent, source = arrived
        index = options.ids

        def ids(array: Array | None) -> Array | None:
            return None if array is None else like(index.kind, array)

        arrivals = Arrivals(
            x=as_kind(payload.x.kind, rows, self._config.dtype if scales is None else FP8),
            scales=None if payload.scales is None else like(payload.scales.kind, scales),
            topk=ids(None if topk is None else topk.astype(index.dtype)),
            weights=None if sent is None else like(kind_of(weights), sent),
            src_rank=ids(None if source is None else source[:, 0].copy()),
            src_token=ids(None if source is None else source[:, 1].copy()),
        )
        sync_current_stream(self._rank)
        return arrivals

    def _launch(self, name: str, template: str, *args: Any, uses: Any = (), shared_bytes: int = 0) -> None:
        kernel(name, template).launch(
            self._rank,
            self._config.num_sms,
            self._threads,
            *args,
            shared_bytes=shared_bytes,
            uses=tuple(array for array in uses if array is not None),
        )


def _different_operations(tags: Array) -> RankMismatchError:
    doing: dict[int, list[int]] = {}
    for r, tag in enumerate(tags):
        doing.setdefault(int(tag) & (1 << _KIND_BITS) - 1, []).append(r)
    who = " but ".join(f"{_NAMES[kind]} on {name_ranks(ranks)}" for kind, ranks in sorted(doing.items()))
    return RankMismatchError(f"the ranks call different operations: {who}; call the same ones in the same order")


def get_dispatch_layout(
    rank: Rank, config: BufferConfig, threads: int, experts: Array
) -> tuple[Array, Array, Array, Array]:
    """Launch <moe/common/layout.cuh> for ``experts`` ``[num_tokens, top_k]``: topk_idx, send_index, rank_counts,
    expert_counts."""
    ranks, num_tokens = config.world_size, len(experts)
    # Kernels know one type of index. The copy is the handle's own: the caller may overwrite the array.
    topk_idx = rank.empty((num_tokens, config.top_k), np.int32)
    topk_idx[...] = like(describe(topk_idx).kind, experts)
    send_index = rank.empty((num_tokens, ranks), np.int32)
    rank_counts = rank.empty(ranks, np.int32)
    expert_counts = rank.empty(config.num_experts, np.int32)
    sync_current_stream(rank)
    args = header_struct("moe/common/layout.cuh", "LayoutArgs").pack(
        num_tokens=num_tokens, top_k=config.top_k, experts_per_rank=config.experts_per_rank
    )
    library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout").launch(
        rank,
        min(ranks, config.num_sms),
        threads,
        args,
        topk_idx,
        send_index,
        rank_counts,
        expert_counts,
        shared_bytes=4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + config.experts_per_rank),
    )
    return topk_idx, send_index, rank_counts, expert_counts


def pack_addresses(struct: HeaderStruct, arrays: Sequence[Array | None]) -> bytes:
    """A struct whose members are the addresses of ``arrays``."""
    return struct.pack(**dict(zip(struct.names, map(address_of, arrays), strict=True)))


def split(array: Array, *lengths: int) -> list[Array]:
    """Consecutive parts of a flat array."""
    ends = np.cumsum(lengths)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]

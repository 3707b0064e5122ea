"""The interface between a Buffer and its mode (the path of its data): a Protocol, and its records.

:class:`ep_lib.moe.direct.DirectMode` writes directly into peers' memory,
:class:`ep_lib.moe.pcie.mode.PcieMode` sends everything through NICs and bounce buffers,
:class:`ep_lib.moe.hierarchical.mode.HierarchicalMode` uses NICs between nodes only, and
:class:`ep_lib.moe.low_latency.mode.LowLatencyMode` is for decode batches, with calls of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ep_lib.memory.arrays import Array, ArrayInfo
from ep_lib.moe.agreement import Tag
from ep_lib.moe.event import Event
from ep_lib.moe.formats import RowFormat


class Payload(NamedTuple):
    """Checked rows of a dispatch, in memory that kernels read."""

    x: ArrayInfo  # [T, columns] of the form, or bfloat16 [T, hidden] that the sender casts to it
    scales: ArrayInfo | None  # [T, scale columns]; None if rows are cast
    form: RowFormat | None = None  # form of sent rows; None: the Buffer's dtype
    row_scale: ArrayInfo | None = None  # float32 [T], of forms that have one
    cast: str = ""  # "kFp8" and others of Cast in <ep/block_scales.cuh>, if rows are cast


class DispatchOptions(NamedTuple):
    """The caller's options for the results of a dispatch."""

    ids: ArrayInfo  # an array of the ids' kind and dtype
    num_worst_tokens: int = 0  # rows of the results, if not 0; the host then does not wait for the GPU
    expert_alignment: int = 1
    async_finish: bool = False  # beside the caller's stream
    copy: bool = True  # into arrays of the caller's own
    sorted_by_expert: bool = False  # a copy grouped by expert, too
    column_major_scales: bool = False


class Plan(NamedTuple):
    """The ranks' exchanged counts: in host memory, or on the device with ``num_worst_tokens``."""

    received: Array  # int32 [ranks]: rows from each source
    contents: list[int] | None  # [ranks]: each rank's `content`; None on the device
    tokens_per_expert: Array  # int32 [experts_per_rank]


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Received rows grouped by expert, ready for a grouped GEMM (<moe/direct/expert_rows.cuh>).

    A received row appears once for each of this rank's experts that it chose. M rows: ``offsets[e]`` to ``offsets[e +
    1]`` belong to expert e, in the order of receiving, then rows of zeros up to a multiple of expert_alignment. With
    ``num_worst_tokens`` M is the largest possible number, and rows behind ``offsets[-1]`` are undefined. Dispatches by
    a handle share offsets, row and slot with the first one.
    """

    x: Any  # [M, hidden]; with their scales if such rows were sent (1 for rows of zeros; NVFP4: 0). None in a handle
    offsets: Array  # int32 [experts_per_rank + 1], on the device
    weights: Array | None  # float32 [M]: the choice's weight, 0 for rows of zeros; None if no weights were given
    row: Array  # int32 [M]: the received row's number, -1 for rows of zeros
    slot: Array  # int32 [N, top_k]: the row here of each received row's choices; -1 for experts elsewhere


class Arrivals(NamedTuple):
    """The N rows of a dispatch, in arrays of the caller's kinds."""

    x: Array  # [N, columns of the payload's form]
    scales: Array | None  # [N, scale columns] of rows that have scales
    topk: Array | None  # [N, top_k] in the kind and dtype of the options' ids; None if the handle has it
    weights: Array | None  # float32 [N, top_k]; None if none were sent
    src_rank: Array | None  # int32 [N]; None if the handle has it
    src_token: Array | None  # int32 [N]
    by_expert: ExpertRows | None = None
    row_scale: Array | None = None  # float32 [N], of forms that have one

    @property
    def rows(self) -> Any:
        """The x for the caller: with scales, a pair or a triple."""
        return with_scales(self.x, self.scales, self.row_scale)


def with_scales(x: Array, scales: Array | None, row_scale: Array | None) -> Any:
    """x, (x, scales) or (x, scales, row_scale)."""
    if scales is None:
        return x
    return (x, scales) if row_scale is None else (x, scales, row_scale)


class DispatchRouting(Protocol):
    """The routing of this rank's tokens, in the form for a mode's kernels."""

    @property
    def topk_idx(self) -> Array: ...  # int32 [num_tokens, top_k]: global expert ids


class Mode(Protocol):
    """The symmetric memory and kernels of a mode. Unsupported options raise ArgumentError."""

    device: str  # of its kernels: "cpu" or "cuda:N"
    broken: Array  # uint32 [1] in host memory: 1 after an operation has failed in between (<moe/common/failure.cuh>)

    @property
    def meeting_place(self) -> int:
        """An address in its symmetric memory; for a normal mode the part for <moe/common/regroup.cu>."""

    def begin_anew(self, masked: Collection[int]) -> None:
        """Resets to the state after __init__, without ``masked`` ranks, while no rank runs a kernel."""

    def close(self, orderly: bool = True) -> None:
        """Free the symmetric memory; ``orderly``: every rank calls this."""


class NormalMode(Mode, Protocol):
    """Carries out dispatches and combines, one after the other.

    Add 1 to ``epoch`` to begin an operation. If ranks differ (in ``content``, or in their tags, see
    :meth:`mismatched_ranks`), the results of that operation are meaningless, and the next one works.
    """

    checks_values: bool  # whether a dispatch without a handle checks values, and raises ArgumentError before sending
    epoch: int  # the number of the current operation, the same on all ranks

    def waits(self, async_finish: bool) -> bool:
        """Whether an operation and its checks are complete when its call returns."""

    def dispatch(
        self,
        payload: Payload,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        content: int,
        options: DispatchOptions,
    ) -> tuple[Any, Plan, Arrivals | None]:
        """Count and send. The first result is a DispatchRouting; no Arrivals if ``content`` differs between ranks."""

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
        """Send with the routing of an earlier dispatch of ``num_rows`` rows; then check :meth:`mismatched_ranks`.
        ``by_expert``: the earlier one's result, if rows must be grouped by expert."""

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: Any,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo],
        async_finish: bool,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
        by_choice: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; then check :meth:`mismatched_ranks`.
        ``by_expert``: rows are grouped by expert. ``as_fp8``: rows are sent as FP8. ``by_choice``: in the order of
        choices, not of ranks."""

    def combine_input(self, like: Array, num_rows: int) -> Array:
        """An array for experts' results that a combine sends back: ``[num_rows, hidden]``, an array of the kind of
        ``like``."""

    def is_combine_input(self, x: ArrayInfo) -> bool:
        """Whether these rows are :meth:`combine_input`'s."""

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """The ranks whose tag differs from ours, and the differing bits, as far as known without waiting for the
        GPU."""

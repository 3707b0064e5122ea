"""What a Buffer needs of a mode, the way that its data takes: a Protocol, and the records that cross it.

:class:`ep_lib.moe.direct.mode.DirectMode` writes directly into peers' memory,
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

    x: ArrayInfo  # [T, columns] of the form, or bfloat16 [T, hidden] that is cast to it on the way
    scales: ArrayInfo | None  # [T, scale columns]; None where rows are cast
    form: RowFormat | None = None  # in which rows travel; None: in the Buffer's dtype
    row_scale: ArrayInfo | None = None  # float32 [T], of forms that have one
    cast: str = ""  # "kFp8" and others of Cast in <ep/block_scales.cuh>, where rows are cast


class DispatchOptions(NamedTuple):
    """In what form the caller wants the results of a dispatch."""

    ids: ArrayInfo  # an array of the kind and dtype that the ids get
    num_worst_tokens: int = 0  # rows of the results, if not 0; nothing waits for the GPU then
    expert_alignment: int = 1
    async_finish: bool = False  # beside the caller's stream
    copy: bool = True  # into arrays of the caller's own
    sorted_by_expert: bool = False  # a copy grouped by expert, too
    column_major_scales: bool = False


class Plan(NamedTuple):
    """What the ranks told each other: in host memory, or on the device with ``num_worst_tokens``."""

    received: Array  # int32 [ranks]: rows from each source
    contents: Array | None  # [ranks]: what each rank passed for `content`; None on the device
    tokens_per_expert: Array  # int32 [experts_per_rank]


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Received rows grouped by expert, ready for a grouped GEMM (<moe/direct/expert_rows.cuh>).

    Each received row once for each of this rank's experts that it chose. M rows: those of expert e are
    ``offsets[e]`` to ``offsets[e + 1]``, in the order in which they were received, then rows of zeros up to a multiple
    of expert_alignment. With ``num_worst_tokens`` M is the most that there could be, and what stands behind
    ``offsets[-1]`` means nothing. Dispatches by a handle share offsets, row and slot with the first one.
    """

    x: Any  # [M, hidden]; with their scales if such rows were sent (1 for rows of zeros; NVFP4: 0). None in a handle
    offsets: Array  # int32 [experts_per_rank + 1], on the device
    weights: Array | None  # float32 [M]: the choice's weight, 0 for rows of zeros; None if no weights were given
    row: Array  # int32 [M]: which received row it is, -1 for rows of zeros
    slot: Array  # int32 [N, top_k]: where each received row's choices stand here; -1 for experts elsewhere


class Arrivals(NamedTuple):
    """What a dispatch brought: N rows, arrays of the caller's kinds."""

    x: Array  # [N, columns of the payload's form]
    scales: Array | None  # [N, scale columns] of rows that have scales
    topk: Array | None  # [N, top_k] in the kind and dtype of the options' ids; None where the handle has it
    weights: Array | None  # float32 [N, top_k]; None if none were sent
    src_rank: Array | None  # int32 [N]; None where the handle has it
    src_token: Array | None  # int32 [N]
    by_expert: ExpertRows | None = None
    row_scale: Array | None = None  # float32 [N], of forms that have one

    @property
    def rows(self) -> Any:
        """What the caller gets as x: with scales, a pair or a triple."""
        return with_scales(self.x, self.scales, self.row_scale)


def with_scales(x: Array, scales: Array | None, row_scale: Array | None) -> Any:
    """x, (x, scales) or (x, scales, row_scale)."""
    if scales is None:
        return x
    return (x, scales) if row_scale is None else (x, scales, row_scale)


class DispatchRouting(Protocol):
    """Where this rank's tokens go, as a mode's kernels want to have it."""

    @property
    def topk_idx(self) -> Array: ...  # int32 [num_tokens, top_k]: global expert ids


class Mode(Protocol):
    """Symmetric memory and kernels of a way that a Buffer's data takes. What a mode cannot do raises ArgumentError."""

    device: str  # where its kernels read: "cpu" or "cuda:N"
    broken: Array  # uint32 [1] in host memory: 1 once an operation gave up half-way (<moe/common/failure.cuh>)

    @property
    def meeting_place(self) -> int:
        """An address in its symmetric memory; a normal mode's: of the part that <moe/common/regroup.cu> takes."""

    def begin_anew(self, masked: Collection[int]) -> None:
        """As after __init__, without the ranks that are ``masked``, while no rank runs a kernel."""

    def close(self, orderly: bool = True) -> None:
        """Give the symmetric memory back; ``orderly``: every rank comes here."""


class NormalMode(Mode, Protocol):
    """Carries out dispatches and combines, one after the other.

    Add 1 to ``epoch`` to begin an operation. Where ranks turn out to differ (in ``content``, or in their tags as
    :meth:`mismatched_ranks` tells), the results of that operation mean nothing, and the next one works.
    """

    checks_values: bool  # of a dispatch without a handle; raises ArgumentError before anything is sent
    epoch: int  # the number of the current operation, the same on all ranks

    def waits(self, async_finish: bool) -> bool:
        """Whether an operation is done, and what it found is known, when its call returns."""

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
        """Send as an earlier dispatch did, which brought ``num_rows`` rows; then ask :meth:`mismatched_ranks`.
        ``by_expert``: what the earlier one made, if rows are to be grouped by expert."""

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
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; then ask :meth:`mismatched_ranks`.
        ``by_expert``: rows are grouped by expert. ``as_fp8``: rows travel as FP8. ``by_choice``: in the order of
        choices, not of ranks."""

    def combine_input(self, like: Array, num_rows: int) -> Array:
        """Where experts may write what a combine brings back: ``[num_rows, hidden]``, an array of the kind of
        ``like``."""

    def is_combine_input(self, x: ArrayInfo) -> bool:
        """Whether these rows are :meth:`combine_input`'s."""

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """The ranks whose tag was another one than ours, and in what bits; as far as is known without waiting for a
        GPU."""

"""What a Buffer needs of the way that its data takes: a small Protocol, and the records that cross it.

:class:`ep_lib.moe.direct.mode.DirectExchange` writes directly into peers' memory,
:class:`ep_lib.moe.pcie.mode.PcieMode` sends everything through NICs and bounce buffers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ep_lib.memory.arrays import ArrayInfo, describe
from ep_lib.moe.direct.expert_rows import ExpertRows
from ep_lib.moe.event import Event


class Payload(NamedTuple):
    """Checked rows of a dispatch, in memory that kernels read."""

    rows: Any  # [T, hidden], the Buffer's dtype or FP8
    scales: Any | None  # float32 [T, hidden / 128] of FP8 rows
    info: ArrayInfo  # of the rows

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.info.shape[0]


class Wishes(NamedTuple):
    """How the caller would have the results of a dispatch."""

    index: Any  # an array of the kind and dtype that ids shall have
    num_worst_tokens: int = 0  # rows of the results, if not 0; nothing waits for the GPU then
    expert_alignment: int = 1
    async_finish: bool = False  # beside the caller's stream
    copy: bool = True  # into arrays of the caller's own
    sorted_by_expert: bool = False  # a copy grouped by expert, too


class Plan(NamedTuple):
    """What the ranks told each other: in host memory, or on the device if ``num_worst_tokens`` was wished."""

    received: Any  # int32 [ranks]: rows from each source
    options: Any | None  # [ranks]: what each rank passed for `options`; None on the device
    tokens_per_expert: Any  # int32 [experts_per_rank]


class Arrivals(NamedTuple):
    """What a dispatch brought: N rows, arrays of the caller's kinds."""

    rows: Any  # [N, hidden], the Buffer's dtype or FP8
    scales: Any | None  # float32 [N, hidden / 128] of FP8 rows
    topk: Any | None  # [N, top_k] as wished; None where the handle has it
    weights: Any | None  # float32 [N, top_k]; None if none were sent
    src_rank: Any | None  # int32 [N]; None where the handle has it
    src_token: Any | None  # int32 [N]
    by_expert: ExpertRows | None = None


class Routing(Protocol):
    """Where this rank's tokens go, as a mode's kernels want to have it."""

    @property
    def topk_idx(self) -> Any: ...  # int32 [num_tokens, top_k]: global expert ids


class Mode(Protocol):
    """Carries out one collective operation after the other.

    Begin each operation with :meth:`next_operation`. Where ranks turn out to differ (in ``options``, or in ``note`` as
    :meth:`who_differs` tells), the results of that operation mean nothing, and the next one works.
    """

    device: str  # where its kernels read: "cpu" or "cuda:N"
    checks_values: bool  # of a dispatch without a handle; raises ArgumentError before anything is sent
    operation: int  # the number of the current operation, the same on all ranks

    def next_operation(self) -> None:
        """Every rank begins the same operation."""

    def dispatch(
        self, payload: Payload, experts: Any, weights: Any, options: int, wishes: Wishes
    ) -> tuple[Any, Plan, Arrivals | None]:
        """Count and send. The first result is a Routing; no Arrivals if options differ between ranks."""

    def dispatch_again(
        self,
        payload: Payload,
        weights: Any,
        routing: Any,
        rows: int,
        note: int,
        wishes: Wishes,
        by_expert: ExpertRows | None = None,
    ) -> Arrivals | None:
        """Send as an earlier dispatch did, which brought ``rows`` rows; then ask :meth:`who_differs`. ``by_expert``:
        what the earlier one made, if rows shall be grouped by expert."""

    def combine(
        self,
        rows: Any,
        weights: Any,
        routing: Any,
        note: int,
        *,
        bias: tuple[Any, ...],
        async_finish: bool,
        by_expert: ExpertRows | None = None,
    ) -> Any:
        """Bring rows back and add them up: ``[num_tokens, columns of rows]``; then ask :meth:`who_differs`. With
        ``by_expert`` rows are grouped by expert."""

    def finished(self, array: Any, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""

    def who_differs(self) -> list[tuple[int, int]]:
        """The ranks whose note was another one than ours, and in what bits; as far as is known without waiting for
        a GPU."""

    def close(self) -> None:
        """Give the symmetric memory back."""


def kind_of(array: Any) -> str:
    """The library that an array comes from: "numpy", "cupy" or "torch"."""
    return describe(array).kind

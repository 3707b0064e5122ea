"""What a Buffer needs of the way that its data takes: a small Protocol, and the records that cross it.

:class:`ep_lib.moe.exchange.Exchange` writes directly into peers' memory, :class:`ep_lib.moe.pcie.PcieExchange` sends
everything through NICs and bounce buffers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np


class Payload(NamedTuple):
    """Checked rows of a dispatch, in memory that kernels read."""

    rows: Any  # [T, hidden], the Buffer's dtype or FP8
    scales: Any | None  # float32 [T, hidden / 128] of FP8 rows

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.rows.shape[0])


class Plan(NamedTuple):
    """What the ranks told each other, in host memory."""

    received: Any  # int32 [ranks]: rows from each source
    options: Any  # [ranks]: what each rank passed for `options`
    tokens_per_expert: Any  # int32 [experts_per_rank]


class Arrivals(NamedTuple):
    """What a dispatch brought, the caller's own: N rows, arrays of the rank's array module."""

    rows: Any  # [N, hidden], storage dtype; FP8: uint8
    scales: Any | None  # float32 [N, hidden / 128] of FP8 rows
    topk: Any | None  # int32 [N, top_k]; None where the handle has it
    weights: Any | None  # float32 [N, top_k]; None if none were sent
    source: Any | None  # int32 [N, 2]: rank, token; None where the handle has it


class Routing(Protocol):
    """Where this rank's tokens go, as a mode's kernels want to have it."""

    @property
    def topk_idx(self) -> Any: ...  # int32 [num_tokens, top_k]: global expert ids


class Mode(Protocol):
    """Carries out one collective operation after the other; knows nothing of callers' mistakes.

    Begin each operation with :meth:`next_operation`. Where ranks turn out to differ (in ``options``, or in ``note`` as
    :meth:`who_differs` tells), the results of that operation mean nothing, and the next one works.
    """

    device: str  # where its kernels read: "cpu" or "cuda:N"
    storage_dtype: np.dtype[Any]  # how this rank's array module calls the Buffer's dtype
    carries_fp8: bool
    operation: int  # the number of the current operation, the same on all ranks

    def next_operation(self) -> None:
        """Every rank begins the same operation."""

    def dispatch(self, payload: Payload, experts: Any, weights: Any, options: int) -> tuple[Any, Plan, Arrivals | None]:
        """Count and send. The first result is a Routing; no Arrivals if options differ between ranks."""

    def dispatch_again(self, payload: Payload, weights: Any, routing: Any, rows: int, note: int) -> Arrivals | None:
        """Send as an earlier dispatch did, which brought ``rows`` rows; then ask :meth:`who_differs`."""

    def combine(self, rows: Any, weights: Any, routing: Any, note: int) -> Any:
        """Bring rows back and add them up: ``[num_tokens, hidden]``; then ask :meth:`who_differs`."""

    def who_differs(self) -> list[int]:
        """Wait for all kernels; the ranks whose note was another one than ours."""

    def settle(self) -> None:
        """Let the array module's own kernels finish."""

    def close(self) -> None:
        """Give the symmetric memory back."""

"""Received rows grouped by expert, ready for a grouped GEMM. <moe/direct/copy_epilogue.cu> makes them and
<moe/direct/combine_pull.cu> takes them back; what both know of them is in <moe/direct/expert_rows.cuh>."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ep_lib.memory.arrays import Array
from ep_lib.moe.config import BufferConfig


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Each received row once for each of this rank's experts that it chose. M rows: those of expert e are
    ``offsets[e]`` to ``offsets[e + 1]``, in the order in which they were received, then rows of zeros up to a multiple
    of expert_alignment. With ``num_worst_tokens`` M is the most that there could be, and what stands behind
    ``offsets[-1]`` means nothing. Dispatches by a handle share offsets, row and slot with the first one.
    """

    x: Any  # [M, hidden]; with their scales if such rows were sent (1 for rows of zeros; NVFP4: 0). None in a handle
    offsets: Array  # int32 [experts_per_rank + 1], on the device
    weights: Array | None  # float32 [M]: the choice's weight, 0 for rows of zeros; None if no weights were given
    row: Array  # int32 [M]: which received row it is, -1 for rows of zeros
    slot: Array  # int32 [N, top_k]: where each received row's choices stand here; -1 for experts elsewhere


def most_rows(config: BufferConfig, received: int, alignment: int) -> int:
    """Rows that ``received`` ones can make: whole groups of ``alignment``."""
    return (received * config.top_k + config.experts_per_rank * (alignment - 1)) // alignment * alignment

"""Received rows grouped by expert, ready for a grouped GEMM; the kernels are in <moe/direct/expert_rows.cu>."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import Array, ArrayInfo, describe
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.runtime.rank import Rank

_SOURCE = "moe/direct/expert_rows.cu"


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """Each received row once for each of this rank's experts that it chose. M rows: those of expert e are
    ``offsets[e]`` to ``offsets[e + 1]``, in the order in which they were received, then rows of zeros up to a multiple
    of expert_alignment. With ``num_worst_tokens`` M is the most that there could be, and what stands behind
    ``offsets[-1]`` means nothing.
    """

    x: Any  # [M, hidden]; with their scales if such rows were sent (1 for rows of zeros; NVFP4: 0). None in a handle
    offsets: Array  # int32 [experts_per_rank + 1], on the device
    weights: Array | None  # float32 [M]: the choice's weight, 0 for rows of zeros; None if no weights were given
    row: Array  # int32 [M]: which received row it is, -1 for rows of zeros
    slot: Array  # int32 [N, top_k]: where each received row's choices stand here; -1 for experts elsewhere
    _capacity: int = field(repr=False)  # N
    _plan: int = field(repr=False)  # address


class SideRows(NamedTuple):
    """The side rows of a form, as numbers that kernels move."""

    element: str  # "float" or "unsigned char"
    numbers: int  # in a side row
    padding: float | int  # for rows of zeros


class ExpertSorter:
    """Launches the kernels; the caller chooses the stream."""

    def __init__(self, rank: Rank, config: BufferConfig, threads: int, broken: int) -> None:
        """``broken``: the address of the mode's flag (<moe/common/failure.cuh>)."""
        self._rank, self._config, self._threads, self._empty = rank, config, threads, rank._backend.empty
        self._broken = broken
        self._blocks = rank.multiprocessors or 2  # memory of this GPU alone is not what num_sms is for

    def most(self, rows: int, alignment: int) -> int:
        """Rows that ``rows`` received ones can make."""
        return rows * self._config.top_k + self._config.experts_per_rank * (alignment - 1)

    def sort(self, topk: Array, weights: Array, plan: int, all_rows: int, uses: Sequence[Array]) -> ExpertRows:
        """Say where each choice's row stands. ``plan``: the address of notify_dispatch.cu's; ``all_rows``: M."""
        config, index = self._config, describe(topk)
        capacity = index.shape[0]
        empty, kind = self._empty, index.kind
        rows = ExpertRows(
            None,
            empty(kind, (config.experts_per_rank + 1,), INT32),
            None if weights is None else empty(describe(weights).kind, (all_rows,), FLOAT32),
            empty(kind, (all_rows,), INT32),
            empty(kind, (capacity, config.top_k), INT32),
            capacity,
            plan,
        )
        _kernel("place_choices", "<int>" if index.dtype == INT32 else "<long long>").launch(
            self._rank,
            min(config.experts_per_rank, self._blocks),
            self._threads,
            self._args(rows),
            index,
            weights,
            shared_bytes=4 * header_constant(_SOURCE, "kMaxWarps"),
            uses=(*uses, *self._arrays(rows)),
        )
        return rows

    def expand(
        self, rows: ExpertRows, source: int, scales: int, x: Array, to_scales: Array | None, side: SideRows
    ) -> None:
        """Copy received rows, which lie at the address ``source``, to ``x`` ``[M, columns]``, and their side rows."""
        info = describe(x)
        _kernel("expand_rows", f"<{side.element}>").launch(
            self._rank,
            self._blocks,
            self._threads,
            self._args(rows),
            source,
            info,
            info.shape[1] * info.dtype.itemsize // VECTOR_BYTES,
            scales,
            0 if to_scales is None else describe(to_scales).address,
            side.numbers,
            side.padding,
            uses=self._arrays(rows) if to_scales is None else (*self._arrays(rows), to_scales),
        )

    def reduce(self, rows: ExpertRows, y: ArrayInfo, out: int, uses: Sequence[Array]) -> None:
        """Add up what a received row's experts made of it, at the address ``out``: ``[N, hidden]``."""
        element = "<float>" if self._config.dtype == FLOAT32 else "<__nv_bfloat16>"
        _kernel("reduce_choices", element).launch(
            self._rank,
            self._blocks,
            self._threads,
            self._args(rows),
            y,
            out,
            self._config.row_vectors,
            uses=(*uses, *self._arrays(rows)),
        )

    @staticmethod
    def _arrays(rows: ExpertRows) -> tuple[Array, ...]:
        arrays = (rows.slot, rows.row, rows.offsets, rows.weights)
        return tuple(array for array in arrays if array is not None)

    def _args(self, rows: ExpertRows) -> bytes:
        return header_struct(_SOURCE, "ExpertRowsArgs").pack(
            plan=rows._plan,
            slot=describe(rows.slot).address,
            row=describe(rows.row).address,
            offsets=describe(rows.offsets).address,
            weights=0 if rows.weights is None else describe(rows.weights).address,
            broken=self._broken,
            all=len(rows.row),
            capacity=rows._capacity,
            top_k=self._config.top_k,
            experts_per_rank=self._config.experts_per_rank,
        )


def _kernel(name: str, template: str = "") -> Kernel:
    return library_kernel(_SOURCE, f"ep_{name}{template}")

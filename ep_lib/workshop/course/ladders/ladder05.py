"""05_bounce_buffer.cu: rows between three ranks through a few slots, in each rung. Rung 1 deadlocks and is not run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, equal_to
from ep_lib.workshop.lessons import packed

RANKS, MAX_ROWS, ROW_BYTES, SLOT_ROWS = 3, 48, 1 << 10, 4
_HEADER_BYTES = 16
_AREA = (RANKS, MAX_ROWS, ROW_BYTES)


def _counts() -> Any:
    """Rows from each source to each destination."""
    counts = np.random.default_rng(5).integers(MAX_ROWS // 2, MAX_ROWS + 1, (RANKS, RANKS)).astype(np.int32)
    counts[0, RANKS - 1] = MAX_ROWS
    return counts


def _rows_of(source: int) -> Any:
    return np.random.default_rng(source).integers(1, 256, _AREA, np.uint8)


def _expected(rank: int) -> Any:
    out, counts = np.zeros(_AREA, np.uint8), _counts()
    for source in range(RANKS):
        rows = counts[source, rank]
        out[source, :rows] = _rows_of(source)[rank, :rows]
    return out


def _exchange(memory: Memory, file: Path, name: str, blocks: int = 2 * RANKS, slots: int = 4) -> Prepared:
    """``slots`` of a ring; 0: an inbox with room for everything."""
    rank, rows = memory.rank, _rows_of(memory.rank.rank)
    structs = str(file.with_suffix(".cuh"))
    out, received = memory.own(np.zeros(_AREA, np.uint8)), memory.own(np.zeros(RANKS, np.int32))
    counts = memory.own(_counts()[rank.rank])
    source = memory.own(rows) if slots else memory.symmetric(rows)
    addresses = {"source": source, "counts": counts, "out": out, "received": received}
    streams = packed(structs, "Streams", **addresses, max_rows=MAX_ROWS, row_bytes=ROW_BYTES)
    args: tuple[Any, ...]
    if slots:
        shape = (RANKS, slots, _HEADER_BYTES + SLOT_ROWS * ROW_BYTES)
        arrays = {
            "inbox": memory.symmetric(np.zeros(shape, np.uint8)),
            "staging": memory.symmetric(np.zeros(shape, np.uint8)),
            "arrived": memory.symmetric(np.zeros((RANKS, slots), np.uint64)),
            "credits": memory.symmetric(np.zeros(RANKS, np.uint64)),
        }
        args = (packed(structs, "Ring", **arrays, num_slots=slots, slot_rows=SLOT_ROWS),)
    else:
        args = (memory.symmetric(np.zeros(_AREA, np.uint8)), memory.symmetric(np.zeros(RANKS, np.uint64)))
    kernel = Kernel.from_file(file, name)
    return Prepared(
        lambda: kernel.launch(rank, blocks, 32, streams, *args, uses=memory.arrays), lambda: rank.to_host(out)
    )


_wrong = equal_to(_expected)
LADDER = Ladder(
    "05_bounce_buffer.cu",
    f"Up to {MAX_ROWS} rows of {ROW_BYTES >> 10} KiB for each pair of ranks, {SLOT_ROWS} rows in a slot. Rung 1 "
    "deadlocks and is not run.",
    RANKS,
    (
        Rung(0, "exchange_unbounded", partial(_exchange, blocks=RANKS, slots=0), _wrong),
        Rung(2, "exchange_with_credits", partial(_exchange, slots=1), _wrong),
        Rung(3, "exchange_pipelined", _exchange, _wrong),
        Rung(4, "exchange_merged", partial(_exchange, blocks=RANKS), _wrong),
        Rung(5, "exchange_by_rings", _exchange, _wrong),
    ),
    fabric="rc",
)

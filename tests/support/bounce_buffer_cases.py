"""Runs the kernels of tutorial_kernels/05_bounce_buffer*.cu: streams of rows of any length between all ranks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Fabric, Kernel, Rank

Array = np.ndarray[Any, Any]
TUTORIAL = Path(__file__).resolve().parents[2] / "tutorial_kernels"
RIGHT, BROKEN = "05_bounce_buffer", "05_bounce_buffer_broken"
ROW_BYTES, MAX_ROWS, SLOT_ROWS = 48, 11, 2
HEADER_BYTES = 16

STREAMS = np.dtype(
    [(name, np.uint64) for name in ("source", "counts", "out", "received")]
    + [(name, np.int32) for name in ("max_rows", "row_bytes")]
)
RING = np.dtype(
    [(name, np.uint64) for name in ("inbox", "staging", "arrived", "credits")]
    + [(name, np.int32) for name in ("num_slots", "slot_rows")]
)

FABRICS = [
    None,
    Fabric("rc"),
    Fabric("srd"),
    Fabric("rc", ranks_per_node=2, p2p=False),
    Fabric("srd", ranks_per_node=2, queue_pairs=1, queue_depth=1),
]


def name_of(fabric: Fabric | None) -> str:
    return "p2p" if fabric is None else f"{fabric.kind}-{fabric.ranks_per_node}"


@functools.lru_cache(maxsize=32)
def kernel(name: str) -> Kernel:
    for file in (RIGHT, BROKEN):
        found = Kernel.from_file(TUTORIAL / f"{file}.cu", name)
        if f" {name}(" in found.source:
            return found
    raise AssertionError(name)


def counts_of(seed: int, ranks: int, longest: int = MAX_ROWS) -> Array:
    """counts[source, destination]; some streams are empty, some as long as can be."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, longest + 1, (ranks, ranks))
    counts[rng.random((ranks, ranks)) < 0.2] = 0
    counts[0, ranks - 1] = longest
    return counts.astype(np.int32)


def rows_of(source: int, ranks: int) -> Array:
    """What rank ``source`` may send: uint8 [ranks, MAX_ROWS, ROW_BYTES], without zeros."""
    return np.random.default_rng(source).integers(1, 256, (ranks, MAX_ROWS, ROW_BYTES), np.uint8)


def expected(rank: int, counts: Array) -> Array:
    """The oracle: what must lie in ``out`` of ``rank``, zeros where nothing came."""
    ranks = len(counts)
    out = np.zeros((ranks, MAX_ROWS, ROW_BYTES), np.uint8)
    for source in range(ranks):
        n = counts[source, rank]
        out[source, :n] = rows_of(source, ranks)[rank, :n]
    return out


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def pack(dtype: Any, *values: Any) -> Any:
    """A struct for a kernel: arrays become addresses."""
    return np.array(tuple(v if isinstance(v, int) else address(v) for v in values), dtype)[()]


def exchange(rank: Rank, name: str, counts: Array, slots: int) -> bool:
    """One exchange by the kernel ``name``. Is everything right that came here?"""
    ranks, me = rank.world_size, rank.rank
    area = (ranks, MAX_ROWS, ROW_BYTES)
    out, received = rank.to_device(np.zeros(area, np.uint8)), rank.to_device(np.zeros(ranks, np.int32))
    mine = rank.to_device(np.ascontiguousarray(counts[me]))
    if name == "exchange_unbounded":
        source, inbox, arrived = (
            rank.symmetric(area, np.uint8),
            rank.symmetric(area, np.uint8),
            rank.symmetric(ranks, np.uint64),
        )
        source[...] = rank.xp.asarray(rows_of(me, ranks))
        streams = pack(STREAMS, source, mine, out, received, MAX_ROWS, ROW_BYTES)
        kernel(name).launch(rank, ranks, 32, streams, inbox, arrived)
    else:
        slots_shape = (ranks, slots, HEADER_BYTES + SLOT_ROWS * ROW_BYTES)
        inbox, staging = rank.symmetric(slots_shape, np.uint8), rank.symmetric(slots_shape, np.uint8)
        arrived, credits = rank.symmetric((ranks, slots), np.uint64), rank.symmetric(ranks, np.uint64)
        source = rank.to_device(rows_of(me, ranks))
        streams = pack(STREAMS, source, mine, out, received, MAX_ROWS, ROW_BYTES)
        ring = pack(RING, inbox, staging, arrived, credits, slots, SLOT_ROWS)
        blocks = ranks if name in ("exchange_in_turn", "exchange_merged") else 2 * ranks
        kernel(name).launch(rank, blocks, 32, streams, ring)
    right = np.array_equal(rank.to_host(out), expected(me, counts))
    return right and np.array_equal(rank.to_host(received), counts[:, me])

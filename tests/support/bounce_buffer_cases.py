"""Runs the kernels of tutorial_kernels/05_bounce_buffer*.cu: streams of rows of any length between all ranks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ep_lib import Fabric, Kernel, Rank
from ep_lib.workshop.lessons import bounce_buffers
from support import ROOT

Array = np.ndarray[Any, Any]
TUTORIAL = ROOT / "tutorial_kernels"
RIGHT, BROKEN = "05_bounce_buffer", "05_bounce_buffer_broken"
ROW_BYTES, MAX_ROWS, SLOT_ROWS = 48, 11, 2

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


def exchange(rank: Rank, name: str, counts: Array, slots: int) -> bool:
    """One exchange by the kernel ``name``. Is everything right that came here?"""
    blocks = 1 if name in ("exchange_in_turn", "exchange_merged") else 2
    slots = 0 if name == "exchange_unbounded" else slots
    return bounce_buffers.exchange(rank, kernel(name), counts, slots, SLOT_ROWS, blocks, MAX_ROWS, ROW_BYTES)

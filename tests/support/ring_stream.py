"""Streams through <ep/ring.cuh>: a program for the ranks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank
from support import TESTS

SOURCE = TESTS / "kernels" / "ring.cu"


@functools.cache
def kernel() -> Kernel:
    return Kernel.from_file(SOURCE, "stream")


def data_of(rank: int, size: int, launch: int) -> Any:
    return np.random.default_rng([rank, launch]).integers(0, 256, size, np.uint8)


def stream(
    rank: Rank, launched: Kernel, num_slots: int, slot_bytes: int, sizes: tuple[int, ...], *which: int
) -> list[bool]:
    """One launch for each of ``sizes`` on the same ring; whether each brought what was sent."""
    staging, slots = (rank.symmetric(num_slots * slot_bytes, np.uint8) for _ in range(2))
    counters = rank.symmetric(1 + num_slots, np.uint64)
    messages = rank.to_device(np.zeros(2, np.uint64))
    right, previous = [], (rank.rank - 1) % rank.world_size
    for number, size in enumerate(sizes):
        source = rank.to_device(data_of(rank.rank, size, number))
        target = rank.to_device(np.zeros(size, np.uint8))
        ring = (staging, slots, counters, num_slots, slot_bytes)
        launched.launch(rank, 1, 64, *which, *ring, source, target, size, messages)
        right.append(np.array_equal(rank.to_host(target), data_of(previous, size, number)))
    return right

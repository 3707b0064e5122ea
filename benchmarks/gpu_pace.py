"""The pace of the host, which the figures of calls that the host limits are worth.

A virtual core runs Python at half its pace for seconds at a time (as if another machine had the core's other thread),
and such a call takes 1.6 times as long meanwhile. So a fixed piece of Python is timed before and behind each round of
calls, and only rounds at the full pace count.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

import ep_lib

ROUNDS = 5
SECONDS = 2.0  # of rounds, until ROUNDS came at the full pace
FULL = 1.2  # times the quickest
Sample = TypeVar("Sample")


def _pace() -> float:
    """Seconds that this core takes now for a fixed piece of Python."""
    began, total = time.perf_counter(), 0
    for number in range(20_000):
        total += number & 7
    return time.perf_counter() - began


@functools.cache
def _full_pace(rank: ep_lib.Rank) -> float:
    """Collective: the quickest pace of all cores that the ranks may use. The emulator's times mean nothing."""
    if rank.backend != "cuda":
        return math.inf
    cores, quickest = os.sched_getaffinity(0), []
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            quickest += [_pace() for _ in range(3)]
    finally:
        os.sched_setaffinity(0, cores)
    return min(rank.all_gather(min(quickest)))


def at_full_pace(rank: ep_lib.Rank, once: Callable[[], Sample]) -> tuple[list[Sample], float]:
    """Collective: ROUNDS samples of ``once``, and 0.0; or, if too few rounds were at the full pace, the quickest ones
    and how many times as long as at the full pace Python took."""
    full, rounds = _full_pace(rank), list[tuple[float, Sample]]()
    end, more = time.perf_counter() + SECONDS, True
    while more:
        before = _pace()
        rank.barrier()
        sample = once()
        paces, late = zip(*rank.all_gather((max(before, _pace()), time.perf_counter() > end)), strict=True)
        rounds.append((max(paces) / full, sample))
        quick = sum(pace <= FULL for pace, _ in rounds[1:])  # the first is not counted
        more = len(rounds) <= ROUNDS or (quick < ROUNDS and not any(late))
    best = sorted(rounds[1:], key=lambda each: each[0] > FULL and each[0])[:ROUNDS]
    slowest = best[-1][0]
    return [sample for _, sample in best], slowest if slowest > FULL else 0.0

"""The Python side of a program that every rank runs: numbers go around a ring of ranks.

Exercise 00_first_main replaces this file by the learner's.
"""

from __future__ import annotations

import numpy as np

import ep_lib


def neighbours(rank: int, ranks: int) -> tuple[int, int]:
    """The rank before ``rank`` and the one behind it, in a ring of ``ranks``."""
    # EXERCISE-BEGIN 1
    return (rank - 1) % ranks, (rank + 1) % ranks
    # EXERCISE-END 1


def pass_on(rank: ep_lib.Rank, kernel: ep_lib.Kernel, numbers: list[int]) -> list[int]:
    """Sends ``numbers`` to the rank behind this one, and returns those of the rank before it.

    All ranks call it, with equally many numbers; ``numbers`` stays as it is. ``kernel`` is pass_on of
    tutorial_kernels/00_start_here.cu.
    """
    # EXERCISE-BEGIN 2
    before, behind = neighbours(rank.rank, rank.world_size)
    count = len(numbers)
    box = rank.symmetric(count, np.int32)
    flag = rank.symmetric(1, np.uint64)
    mine = rank.to_device(np.array(numbers, np.int32))
    out = rank.empty(count, np.int32)
    kernel.launch(rank, 1, 64, box, mine, count, flag, out, behind, before)
    received: list[int] = rank.to_host(out).tolist()
    return received
    # EXERCISE-END 2


def pass_far(rank: ep_lib.Rank, kernel: ep_lib.Kernel, numbers: list[int], hops: int) -> list[int]:
    """Returns the numbers of the rank that is ``hops`` places before this one, sent on from rank to rank."""
    # EXERCISE-BEGIN 3
    for _ in range(hops):
        numbers = pass_on(rank, kernel, numbers)
    return numbers
    # EXERCISE-END 3

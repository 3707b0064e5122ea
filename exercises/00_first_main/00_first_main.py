# Exercise 00_first_main, version 1. Leave this line: ep_lib reads it.
"""The Python side of a program that every rank runs: numbers go around a ring of ranks.

Exercise 00_first_main replaces this file by the learner's.
"""

from __future__ import annotations

import numpy as np

import ep_lib


def neighbours(rank: int, ranks: int) -> tuple[int, int]:
    """The rank before ``rank`` and the one behind it, in a ring of ``ranks``."""
    # TASK 1 (1 points): who is next to me in the ring
    # In a ring of 4 ranks, 3 comes before 0, and 0 behind 3. Python's % gives a number from 0 on, for negative
    # ones, too.
    raise NotImplementedError("Task 1 is still to do: who is next to me in the ring")
    # end of TASK 1


def pass_on(rank: ep_lib.Rank, kernel: ep_lib.Kernel, numbers: list[int]) -> list[int]:
    """Sends ``numbers`` to the rank behind this one, and returns those of the rank before it.

    All ranks call it, with equally many numbers; ``numbers`` stays as it is. ``kernel`` is pass_on of
    tutorial_kernels/00_start_here.cu.
    """
    # TASK 2 (3 points): pass numbers on to the next rank
    # `box` and `flag` are what other ranks write into: rank.symmetric(shape, dtype), of np.int32 and np.uint64.
    # `numbers` and `out` are this rank's own: rank.to_device(array), rank.empty(shape, dtype). The kernel takes
    # (box, numbers, count, flag, out, peer, from): whom it sends to, and whose numbers it waits for. One block
    # of 64 threads is enough: kernel.launch(rank, 1, 64, ...) returns at once, and rank.to_host(out) waits
    # until the kernel is done.
    raise NotImplementedError("Task 2 is still to do: pass numbers on to the next rank")
    # end of TASK 2


def pass_far(rank: ep_lib.Rank, kernel: ep_lib.Kernel, numbers: list[int], hops: int) -> list[int]:
    """Returns the numbers of the rank that is ``hops`` places before this one, sent on from rank to rank."""
    # TASK 3 (2 points): and further
    # Each hop is a round of its own, and what came in is what goes out next.
    raise NotImplementedError("Task 3 is still to do: and further")
    # end of TASK 3

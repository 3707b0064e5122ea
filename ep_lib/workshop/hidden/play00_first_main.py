"""The other half of ex00_first_main.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ep_lib


def neighbours(piece: Any, ranks: int) -> list[list[int]]:
    return [list(map(int, piece.neighbours(rank, ranks))) for rank in range(ranks)]


def passes(piece: Any, kernel: str, numbers: Sequence[Sequence[int]], hops: int, seed: int) -> list[Any]:
    """What each rank got: after one pass_on() for ``hops`` -1, or by pass_far(). Then what the checker says."""
    launched = ep_lib.Kernel.from_source(kernel, "pass_on")

    def main(rank: ep_lib.Rank) -> list[int]:
        mine = list(numbers[rank.rank])
        if hops < 0:
            piece.neighbours = lambda me, ranks: ((me - 1) % ranks, (me + 1) % ranks)  # this task is not about them
            got = piece.pass_on(rank, launched, mine)
        else:
            got = piece.pass_far(rank, launched, mine, hops)
        return [int(number) for number in got]

    real = piece.neighbours
    try:
        got = ep_lib.spawn(main, ranks=len(numbers), backend="emulator", seed=seed, heap_bytes=1 << 20, timeout=5)
        if hops < 0:
            report = ep_lib.check(
                main, len(numbers), seeds=2, heap_bytes=1 << 20, timeout=5, stop_at_first=True, memory="sc"
            )
            got += [f"{found.kind}: {found.message}; {found.remedy}"[:300] for found in report.findings[:1]]
        return got
    finally:
        piece.neighbours = real

"""The other half of ex00_first_main.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ep_lib import Rank, spawn
from ep_lib.workshop.seal import Followed, Travels, findings_of


def neighbours(piece: Any, ranks: int) -> list[list[int]]:
    return [list(map(int, piece.neighbours(rank, ranks))) for rank in range(ranks)]


Kept = Travels


def passes(
    piece: Any, ask: Callable[..., Any], kernel: str, numbers: Sequence[Sequence[int]], hops: int, seed: int
) -> list[Any]:
    """What each rank got: after one pass_on() for ``hops`` -1, or by pass_far(). Then what the checker says."""
    followed = Followed(kernel, ask)
    launched = followed.kernel("pass_on", peer_at=5, sends=(1, 2, 4))
    ranks = len(numbers)
    waiting = {number: list(mine) for number, mine in enumerate(numbers)}

    def main(rank: Rank) -> list[int]:
        mine = waiting.pop(rank.rank)
        rank.barrier()  # from now on, no rank finds the numbers of others here
        followed.meetings_of(rank)
        if hops < 0:
            piece.neighbours = lambda me, ranks: ((me - 1) % ranks, (me + 1) % ranks)  # this task is not about them
            got = piece.pass_on(rank, launched, mine)
        else:
            got = piece.pass_far(rank, launched, mine, hops)
        followed.tell(rank)
        return [int(number) for number in got]

    def with_others(rank: Rank) -> None:
        waiting[rank.rank] = [rank.rank] * len(numbers[0])  # of these runs only the checker's words count
        main(rank)

    real = piece.neighbours
    numbers = [[0] * len(mine) for mine in numbers]
    try:
        got = spawn(main, ranks=ranks, backend="emulator", seed=seed, heap_bytes=1 << 20, timeout=5)
        followed.over()
        if hops < 0:
            got += findings_of(with_others, ranks, kernel, seeds=2, heap_bytes=1 << 20)[:1]
        return got
    finally:
        piece.neighbours = real

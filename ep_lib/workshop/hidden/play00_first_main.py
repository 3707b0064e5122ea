"""The other half of ex00_first_main.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank, spawn
from ep_lib.require import index
from ep_lib.workshop.pieces import of_a_rank
from ep_lib.workshop.scenario import RETURNED_NOTHING
from ep_lib.workshop.seal import Followed, Sends, Travels, findings_of, kernels, settled, theirs, unchanged

KERNELS = kernels(Path(__file__).with_name("ex00_first_main.cu"), "pass_on", "note", "canary")
_FROM = 6  # which argument of the kernel it is


def neighbours(piece: Any, ranks: int) -> list[list[int]]:
    return [list(map(int, piece.neighbours(rank, ranks))) for rank in range(ranks)]


class Kept(Travels):
    """And whom the kernels were told to wait for, which only the words of a failed wait show otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._waits_for: list[tuple[int, int | None]] = []

    def waits_for(self, rank: int, source: int | None) -> None:
        self._waits_for.append((rank, source))

    def seen(self, told: Any) -> dict[str, Any]:
        return {**super().seen(told), "waits_for": self._waits_for}


def passes(piece: Any, ask: Callable[..., Any], numbers: Sequence[Sequence[int]], hops: int, seed: int) -> list[Any]:
    """What each rank got: after -hops calls of pass_on(), or by pass_far(). Then what the checker says."""
    followed = Followed(KERNELS, ask)
    followed.kernel("pass_on", sends=Sends(source=1, items=2, item_bytes=4, target=0, signal=3, peer=5))
    ranks = len(numbers)
    waiting = {number: list(mine) for number, mine in enumerate(numbers)}

    def main(rank: Rank) -> list[int]:
        mine = waiting.pop(rank.rank)
        own: Any = of_a_rank(piece, rank.rank)
        rank.barrier()  # from now on, no rank finds the numbers of others here
        (launched,) = followed.follow(rank)
        followed_launch = rank._backend.launch

        def launch(
            kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0, uses: Sequence[Any] = ()
        ) -> None:
            args = settled(args)
            if kernel is launched and len(args) > _FROM and not is_over:
                ask("waits_for", rank.rank, index(args[_FROM]))
            followed_launch(kernel, grid, block, args, shared_bytes, uses)

        rank._backend.launch = launch  # type: ignore[method-assign]
        with unchanged(numbers=mine):
            got = passed(rank, own, launched, mine)
        if got is None:
            raise TypeError(f"pass_{'on' if hops < 0 else 'far'}() {RETURNED_NOTHING}")
        followed.tell(rank)
        return [int(number) for number in got]

    def passed(rank: Rank, own: Any, launched: Kernel, mine: list[int]) -> Any:
        if hops < 0:
            own.neighbours = lambda me, ranks: ((me - 1) % ranks, (me + 1) % ranks)  # this task is not about them
            got = mine
            for _ in range(-hops):
                got = own.pass_on(theirs(rank), launched, got)
            return got
        return own.pass_far(theirs(rank), launched, mine, hops)

    def with_others(rank: Rank) -> None:
        waiting[rank.rank] = others[rank.rank].tolist()  # of these runs only the checker's words count
        main(rank)

    is_over = False
    others = np.random.default_rng().integers(-(1 << 31), 1 << 31, np.shape(numbers))
    numbers = [[0] * len(mine) for mine in numbers]
    got = spawn(main, ranks=ranks, backend="emulator", seed=seed, heap_bytes=1 << 20, timeout=5)
    followed.over()
    is_over = True
    if hops < 0:
        got += findings_of(with_others, ranks, KERNELS["canary"], seeds=2, heap_bytes=1 << 20)[:1]
    return got

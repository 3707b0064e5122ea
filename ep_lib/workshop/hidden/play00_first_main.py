"""The other half of ex00_first_main.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ep_lib import Kernel, Rank, spawn
from ep_lib.require import index
from ep_lib.workshop.far import Guest
from ep_lib.workshop.followed import Followed, Sends, TheKernel, TheRank, findings_of, kernels

KERNELS = kernels(Path(__file__).with_name("ex00_first_main.cu"), "pass_on")
_FROM = 6  # which argument of the kernel it is


def neighbours(piece: Guest, ranks: int) -> list[list[int]]:
    return [list(map(int, piece.call("neighbours", rank, ranks))) for rank in range(ranks)]


def passes(pieces: Sequence[Guest], numbers: Sequence[Sequence[int]], hops: int, seed: int) -> dict[str, Any]:
    """What each rank got: after -hops calls of pass_on(), or by pass_far(). Then what the checker says. And whom the
    kernels were told to wait for, which only the words of a failed wait show otherwise."""
    followed = Followed(KERNELS)
    followed.kernel("pass_on", sends=Sends(source=1, items=2, item_bytes=4, target=0, signal=3, peer=5))
    ranks = len(numbers)
    waits_for: list[tuple[int, int | None]] = []

    def main(rank: Rank, numbers: Sequence[Sequence[int]]) -> list[int]:
        piece = pieces[rank.rank]
        piece.anew()
        followed.follow(rank)
        followed_launch = rank._backend.launch

        def launch(
            kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0, uses: Sequence[Any] = ()
        ) -> None:
            if kernel is KERNELS["pass_on"] and len(args) > _FROM and not is_over:
                waits_for.append((rank.rank, index(args[_FROM])))
            followed_launch(kernel, grid, block, args, shared_bytes, uses)

        rank._backend.launch = launch  # type: ignore[method-assign]
        got = passed(piece, TheRank(rank, piece), TheKernel(KERNELS["pass_on"]), list(numbers[rank.rank]))
        followed.tell(rank)
        return [int(number) for number in got]

    def passed(piece: Guest, rank: TheRank, kernel: TheKernel, mine: list[int]) -> Any:
        if hops >= 0:
            return piece.call("pass_far", rank, kernel, mine, hops, unchanged="_ _ numbers")
        piece.set("neighbours", lambda me, ranks: ((me - 1) % ranks, (me + 1) % ranks))  # this task is not about them
        got = mine
        for _ in range(-hops):
            got = piece.call("pass_on", rank, kernel, got, unchanged="_ _ numbers")
        return got

    is_over = False
    got = spawn(main, ranks, "emulator", args=(numbers,), seed=seed, heap_bytes=1 << 20, timeout=5)
    followed.over()
    is_over = True
    findings = []
    if hops < 0:  # of these runs only the checker's words count
        findings = findings_of(lambda rank: main(rank, numbers), ranks, KERNELS["canary"], seeds=2, heap_bytes=1 << 20)
    return {**followed.seen(), "got": got, "findings": findings[:1], "waits_for": waits_for}

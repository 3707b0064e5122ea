"""The other half of ex00_first_main.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ep_lib import Rank, spawn
from ep_lib.workshop.grader.followed import Followed, Sends, TheKernel, TheRank, findings_of, kernels
from ep_lib.workshop.grader.process.far import Guest

KERNELS = kernels(Path(__file__).with_name("ex00_first_main.cu"), "pass_on")


def neighbours(piece: Guest, ranks: int) -> list[list[int]]:
    return [list(map(int, piece.call("neighbours", rank, ranks))) for rank in range(ranks)]


def passes(pieces: Sequence[Guest], numbers: Sequence[Sequence[int]], hops: int, seed: int) -> dict[str, Any]:
    """Each rank's numbers after -``hops`` calls of pass_on(), or by pass_far(); the checker's findings; and the ranks
    that the kernels waited for, which otherwise only the message of a failed wait shows."""
    followed = Followed(KERNELS)
    sends = Sends(source=1, items=2, item_bytes=4, target=0, signal=3, peer=5)
    followed.kernel("pass_on", sends=sends, waits_for=6)
    ranks = len(numbers)

    def main(rank: Rank, numbers: Sequence[Sequence[int]]) -> list[int]:
        piece = pieces[rank.rank]
        piece.anew()
        followed.follow(rank)
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

    got = spawn(main, ranks, "emulator", args=(numbers,), seed=seed, heap_bytes=1 << 20, timeout=5)
    followed.over()
    findings = []
    if hops < 0:  # these runs are only for the checker
        findings = findings_of(lambda rank: main(rank, numbers), ranks, KERNELS["canary"], seeds=2, heap_bytes=1 << 20)
    return {**followed.seen(), "got": got, "findings": findings[:1]}

"""Hidden tests of exercise 00_first_main: neighbours in a ring, numbers that are passed on, once and several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ep_lib.workshop.grader.followed import Carried
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import calling, drawn

_ONCE, _TWICE = -1, -2  # as `hops`: that many calls of pass_on(), with the test's own neighbours()


@drawn
def _neighbours(rng: Rng) -> Iterator[Case]:
    for ranks in (1, 2, 3, *(int(rng.integers(*between)) for between in ((4, 30), (30, 257), (257, 1500)))):

        def judge(seen: Any, ranks: int = ranks) -> str | None:
            for rank, (before, behind) in enumerate(seen):
                if before != (rank - 1) % ranks:
                    return f"of {ranks} ranks, {before} is not before {rank}"
                if behind != (rank + 1) % ranks:
                    return f"of {ranks} ranks, {behind} is not behind {rank}"
            return None

        yield calling("neighbours", judge, ranks=ranks)


def _bytes(numbers: list[int]) -> bytes:
    return np.array(numbers, np.int64).astype(np.int32).tobytes()


def _passes(rng: Rng, ranks: int, count: int, hops: int, seed: int) -> Case:
    numbers = rng.integers(-(1 << 31), 1 << 31, (ranks, count)).tolist()

    def judge(seen: Any) -> str | None:
        carried = Carried(seen)
        whose = {tuple(mine): number for number, mine in enumerate(numbers)}
        for rank, got in enumerate(seen["got"]):
            if (found := whose.get(tuple(got))) != (rank - abs(hops)) % ranks:
                what = "other numbers than were sent" if found is None else f"those of rank {found}"
                wanted = (rank - abs(hops)) % ranks
                return f"rank {rank} of {ranks} got {what}; it should be those of rank {wanted}, {abs(hops)} before it"
        for rank in range(ranks):  # the rank whose numbers are sent
            for hop in range(abs(hops)):
                at = (rank + hop) % ranks
                if not carried.was_sent(at, (at + 1) % ranks, _bytes(numbers[rank])):
                    lost = f"the numbers of {hop} ranks before it" if hop else "its own numbers"
                    return f"rank {at} did not send {lost} by the kernel to the rank behind it"
        for rank, source in seen["waits_for"]:
            if source != (before := (rank - 1) % ranks):
                return (
                    f"rank {rank} of {ranks} told the kernel to wait for rank {source}: the numbers come from {before}"
                )
        if others := seen["met"].keys() - {"barrier", "symmetric"}:
            return f"rank.{min(others)}() was called: numbers are to travel by the kernel, from rank to rank"
        return f"the numbers are right, but the checker says: {seen['findings'][0]}" if seen["findings"] else None

    return calling("passes", judge, ranks, numbers=numbers, hops=hops, seed=seed)


@drawn
def _all(rng: Rng, hops: tuple[int, ...], *shapes: tuple[int, int]) -> Iterator[Case]:
    """``shapes``: (ranks, numbers of each rank); 0 numbers: more than a block has threads."""
    for seed, (ranks, count) in enumerate(shapes):
        for number in hops:
            yield _passes(rng, ranks, count or int(rng.integers(65, 140)), number, seed)


_SYMMETRIC = (
    "Send to the rank behind, and wait for the one before. What other ranks write into is symmetric; to_host() waits "
    "for the kernel."
)
_ANEW = "Of an earlier call, the flag has grown already, and the memory may still be written to."

BEHAVIOURS = (
    Behaviour(1, "the ring closes", _neighbours(), "What is before rank 0, and what behind the last one?"),
    Behaviour(2, "numbers come from the rank before", _all((_ONCE,), (2, 1), (3, 64)), _SYMMETRIC),
    Behaviour(2, "what came is passed on in a second call", _all((_TWICE,), (4, 0)), _ANEW),
    Behaviour(3, "numbers come from further away", _all((0, 1, 2, 5), (2, 3), (4, 0)), "One round for each hop."),
)

REHEARSED = 99  # cases of each, in the public checks

"""Hidden tests of exercise 00_first_kernel: numbers written by a block, and one signal for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ep_lib.emulator.accesses import COUNT, STORES
from ep_lib.workshop.hidden import (
    BOTH,
    PAIR,
    RING,
    Behaviour,
    Case,
    Cases,
    Rng,
    Route,
    left_over,
    one,
    refs,
    rehearsed,
    some_zeros,
    under_checker,
)
from ep_lib.workshop.scenario import Array, Launch, Outputs, Ref, Scenario

_SOURCE = str(Path(__file__).with_suffix(".cu"))
KERNELS = ((_SOURCE, "examine"),)

# Mirrors constants of the .cu file.
_WRITE, _TELL = 1, 2
_GUARD = 5


def _case(
    task: int, rng: Rng, seed: int, count: int, threads: int, route: Route = PAIR, told: int | None = None
) -> Case:
    """``told``: what the flags are before, any number if it is not given."""
    ranks = range(len(route))
    numbers = [some_zeros(rng, rng.integers(1, 1 << 30, max(count, 1), dtype=np.int32)) for _ in ranks]
    before = rng.integers(1, 1 << 30, count + 2 * _GUARD, dtype=np.int32)
    flag = int(rng.integers(1, 1 << 40)) if told is None else told
    senders = {peer: me for me, peer in enumerate(route) if peer >= 0}

    def judge(out: Outputs) -> str | None:
        for me in ranks:
            wanted = before.copy()
            if me in senders:
                wanted[_GUARD : _GUARD + count] = numbers[senders[me]][:count]
            if problem := _box_wrong(out["box"][me], wanted, count, me in senders):
                return problem
            signals = int(out["flag"][me][0]) - flag
            if signals != (me in senders):
                if signals == 1 - flag:
                    return "the receiver's flag was set to 1 instead of growing by it"
                return f"the receiver was told {signals} times; once is right"
            if me in senders and np.any(out["found"][me][:count] != numbers[senders[me]][:count]):
                return "a receiver that had seen the signal read other numbers than were sent"
        stores = sum(each.sum(axis=0)[STORES, :, :, COUNT].sum() for each in out.accesses.get("flag", ()))
        if task == 2 and stores:
            return f"{stores} stores were made to a flag: what another rank adds between a look and a store is lost"
        return None

    args: tuple[int | Ref, ...] = (task, task, *refs("box", "numbers"), count, *refs("flag", "found", "seen", "route"))
    return Case(
        Scenario(
            source=_SOURCE,
            ranks=len(route),
            seed=seed,
            launches=((Launch("examine", 2, threads, args),),) * len(route),
            outputs=("box", "flag", "found"),
            watched=("flag",),
            symmetric={"box": [before for _ in ranks], "flag": [np.full(1, flag, np.uint64) for _ in ranks]},
            local={
                "numbers": numbers,
                "found": [left_over(rng, each) for each in numbers],
                "seen": [np.zeros(1, np.uint8) for _ in ranks],
                "route": [np.array([route[me], senders.get(me, -1), flag], np.int64) for me in ranks],
            },
        ),
        judge,
    )


def _box_wrong(got: Array, wanted: Array, count: int, receives: bool) -> str | None:
    wrong = got != wanted
    inside = int(wrong[_GUARD : _GUARD + count].sum())
    if int(wrong.sum()) > inside:
        return f"{int(wrong.sum()) - inside} words before or behind the box were overwritten"
    if inside and not receives:
        return f"{inside} words of a box were overwritten that nobody should have written to"
    return f"{inside} of {count} numbers in the peer's box are wrong" if inside else None


# ---- what is asked --------------------------------------------------------------------------------------------------
def _counts(task: int, *counts: tuple[int, int]) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, (count, threads) in enumerate(counts):
            yield _case(task, rng, 10 * task + seed, count, threads)

    return cases


def _flags(rng: Rng) -> Iterator[Case]:
    for seed, told in enumerate((0, 1, (1 << 32) - 1)):
        yield _case(2, rng, 50 + seed, 40, 32, told=told)


def _routes(task: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, route in enumerate((BOTH, RING)):
            yield _case(task, rng, 100 * task + seed, 70, 64, route)

    return cases


_STRIDE = "Thread t writes numbers t, t + blockDim.x, ..., each into the peer's copy of its place."
_ALL = "A barrier of the block first, then the signal by one thread: a release covers its own thread only."
_ADDS = "The flag has 64 bits, and others may have told before, or tell at the same time: add 1 to it."

BEHAVIOURS = (
    Behaviour(1, "as many numbers as threads", _counts(1, (64, 64), (32, 32)), _STRIDE),
    Behaviour(
        1,
        "more numbers than threads, or fewer, or none",
        _counts(1, (0, 32), (1, 64), (200, 64), (70000, 1024)),
        _STRIDE,
    ),
    Behaviour(1, "between all ranks", _routes(1), _STRIDE),
    Behaviour(1, "it is right in every schedule", under_checker(_counts(1, (100, 64))), _STRIDE),
    Behaviour(2, "the receiver is told once", _counts(2, (64, 64), (0, 32), (3, 1)), _ALL),
    Behaviour(2, "between all ranks", _routes(2), _ALL),
    Behaviour(2, "one is added to what is there", _flags, _ADDS),
    Behaviour(2, "all numbers may be read after the signal", under_checker(_counts(2, (64, 64))), _ALL),
)

PUBLIC = (
    Behaviour(1, "100 numbers, 64 threads", one(lambda rng: _case(1, rng, 1, 100, 64)), _STRIDE),
    Behaviour(2, "64 numbers, one signal", under_checker(_counts(2, (64, 64)), 2), _ALL),
    *rehearsed(BEHAVIOURS),
)

"""Hidden tests of exercise 00_first_kernel: numbers written by a block, and one signal for all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ep_lib.emulator.accesses import COUNT, STORES
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import of_kernels, one, several, under_checker
from ep_lib.workshop.hidden.inputs import random_words
from ep_lib.workshop.hidden.networks import BOTH, PAIR, RING, Route, senders

_GUARD = 5  # mirrors kGuard of the .cu file


def _case(rng: Rng, count: int, threads: int, route: Route = PAIR, told: int | None = None) -> Case:
    """``told``: the initial value of the flags; by default a random one."""
    ranks = range(len(route))
    numbers = [random_words(rng, max(count, 1), np.int32, 1 << 30) for _ in ranks]
    before = rng.integers(1, 1 << 30, count + 2 * _GUARD, dtype=np.int32)
    flag = int(rng.integers(1, 1 << 40)) if told is None else told
    sender = senders(route)

    def judge(out: Outputs) -> str | None:
        for me in ranks:
            wanted = before.copy()
            if me in route:
                wanted[_GUARD : _GUARD + count] = numbers[sender[me]][:count]
            if problem := _box_wrong(out["box"][me], wanted, count, me in route):
                return problem
            signals = int(out["flag"][me][0]) - flag
            if signals != (me in route):
                if signals == 1 - flag:
                    return "the receiver's flag was set to 1 instead of growing by it"
                return f"the receiver was told {signals} times; once is right"
            if me in route and np.any(out["found"][me][:count] != numbers[sender[me]][:count]):
                return "a receiver that had seen the signal read other numbers than were sent"
        stores = sum(each.sum(axis=0)[STORES, :, :, COUNT].sum() for each in out.accesses.get("flag", ()))
        if stores and out.accesses:
            return f"{stores} stores were made to a flag: what another rank adds between a look and a store is lost"
        return None

    scenario = Scenario(
        ranks=len(route),
        launches=Launch(2, threads, (count,)),
        outputs=("box", "flag", "found"),
        symmetric={"box": before, "flag": np.full(1, flag, np.uint64)},
        local={
            "numbers": numbers,
            "found": Room(max(count, 1), np.int32),
            "route": [np.array([route[me], sender[me], flag], np.int64) for me in ranks],
        },
    )
    return Case(scenario, judge)


def _box_wrong(got: Array, wanted: Array, count: int, receives: bool) -> str | None:
    wrong = got != wanted
    inside = int(wrong[_GUARD : _GUARD + count].sum())
    if int(wrong.sum()) > inside:
        return f"{int(wrong.sum()) - inside} words before or behind the box were overwritten"
    if inside and not receives:
        return f"{inside} words of a box were overwritten that nobody should have written to"
    return f"{inside} of {count} numbers in the peer's box are wrong" if inside else None


# ---- what is asked --------------------------------------------------------------------------------------------------
def _watched(rng: Rng) -> Case:
    case = _case(rng, 64, 64)
    return replace(case, scenario=replace(of_kernels(case), watched=("flag",)))


_STRIDE = "Thread t writes numbers t, t + blockDim.x, ..., each into the peer's copy of its place."
_ALL = (
    "A barrier that all threads of the block reach first, then the signal by one: a release covers its own thread only."
)
_ADDS = "The flag has 64 bits, and others may have told before, or tell at the same time: add 1 to it."

_ROUTES = several(_case, (70, 64, BOTH), (70, 64, RING))
_MORE = several(_case, (0, 32), (1, 64), (200, 64), (70000, 1024))
_FLAGS = several(_case, *((40, 32, PAIR, told) for told in (0, 1, (1 << 32) - 1)))

BEHAVIOURS = (
    Behaviour(1, "as many numbers as threads", several(_case, (64, 64), (32, 32)), _STRIDE),
    Behaviour(1, "more numbers than threads, or fewer, or none", _MORE, _STRIDE),
    Behaviour(1, "between all ranks", _ROUTES, _STRIDE),
    Behaviour(1, "it is right in every schedule", under_checker(one(_case, 100, 64)), _STRIDE),
    Behaviour(2, "the receiver is told once", several(_case, (64, 64), (0, 32), (3, 1)), _ALL),
    Behaviour(2, "between all ranks", _ROUTES, _ALL),
    Behaviour(2, "one is added to what is there", _FLAGS, _ADDS),
    Behaviour(2, "all numbers may be read after the signal", under_checker(one(_watched)), _ALL),
)

"""The runs of exercise 01's hidden tests: what each launches, and how the parent judges what comes back.

The learner's functions run inside the kernel of ex01_write_signal.cu, in the child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ep_lib.workshop.hidden import Case
from ep_lib.workshop.hidden.common import PAIR, Rng, Route, memory_wrong, random_bytes, refs, round_up
from ep_lib.workshop.scenario import Array, Launch, Outputs, Scenario

SOURCE = str(Path(__file__).with_name("ex01_write_signal.cu"))

# Mirrors constants of the .cu file.
_COUNTERS, _ARRIVED, _CREDITS, _NOTES = 8, 2, 5, 4


@dataclass(frozen=True)
class Job:
    """The numbers of one run; mirrors ``Job`` of the .cu file, where each is explained, after ``to`` and ``from``."""

    units: int = 1
    bytes: int = 64
    stride: int = 0  # 0: as large as the message needs
    target: int = 0
    source: int = 0
    increment: int = 1
    expect_less: int = 0
    steps: int = 1
    slots: int = 1
    delay: int = 0
    own_send: int = 0
    own_receive: int = 0

    def numbers(self, to: int, sender: int) -> NDArray[np.int64]:
        return np.array([to, sender, *asdict(self).values()], dtype=np.int64)


_BETWEEN = "is there a __syncwarp() between the last write and the signal, which one lane sends?"
_LATE = {1: "which comes first, the data or the signal?", 3: _BETWEEN, 4: _BETWEEN}


# ---- tasks 1, 3 and 4: the learner sends ---------------------------------------------------------------------------
def _writes(task: int, job: Job) -> list[tuple[int, int]]:
    """(offset, bytes) of each write of a unit's message."""
    if task != 4:
        return [(0, job.bytes)]
    writes, offset = [], 0
    for i in range(job.steps):
        size = job.bytes * (job.steps - 1 - i) // job.steps
        writes.append((offset, size))
        offset += size + 3
    return writes


def message_case(task: int, rng: Rng, seed: int, job: Job, route: Route = PAIR) -> Case:
    """One message a unit along ``route``; judged: memory at the signal and in the end, and every counter."""
    writes = _writes(task, job)
    extent = max((offset + size for offset, size in writes), default=0)
    job = replace(job, stride=round_up(job.target + extent + 40, 8))
    ranks = len(route)
    areas = [random_bytes(rng, job.units * job.stride) for _ in route]
    sources = [random_bytes(rng, job.source + job.units * job.stride) for _ in route]
    counters = [_random_counters(rng, job.units) for _ in route]
    before = [c.reshape(-1, _COUNTERS)[:, _ARRIVED].copy() for c in counters]

    want_area = [area.copy() for area in areas]
    want_counters = [c.copy() for c in counters]
    in_message = np.zeros(areas[0].size, bool)
    for me, peer in enumerate(route):
        for unit in range(job.units) if peer >= 0 else ():
            want_counters[peer][unit * _COUNTERS + _ARRIVED] += np.uint64(job.increment)
            for offset, size in writes:
                at = unit * job.stride + job.target + offset
                start = job.source + unit * job.stride + offset
                want_area[peer][at : at + size] = sources[me][start : start + size]
                in_message[at : at + size] = True

    def judge(out: Outputs) -> str | None:
        for me in range(ranks):
            if me not in route and not np.array_equal(out["area"][me], areas[me]):
                return f"the memory of rank {me} changed, but nobody sends to it"
            for problem in (
                _counters_wrong(out["counters"][me], want_counters[me], counters[me], job.units),
                memory_wrong(out["area"][me], want_area[me], in_message, "in the end"),
            ):
                if problem:
                    return problem
            if me in route:
                late = int(np.sum((out["seen"][me] != want_area[me]) & in_message))
                if late:
                    text = f"when the signal arrived, {late} of {int(in_message.sum())} bytes had not arrived"
                    return f"{text}: {_LATE[task]}"
        return None

    block = max(32, job.units if task == 1 else 32 * job.units)
    seen = [np.zeros_like(area) for area in areas]
    return Case(_scenario(task, seed, route, job, block, areas, sources, counters, seen, before), judge)


# ---- task 2: the learner waits --------------------------------------------------------------------------------------
def wait_case(rng: Rng, seed: int, job: Job, route: Route = PAIR, *, start: int | None = None) -> Case:
    """``steps`` signals, each after its data; judged: what was there when the learner's wait returned."""
    job = replace(job, stride=round_up(job.target + job.bytes + 8, 8 * job.units))
    areas = [random_bytes(rng, job.steps * job.stride) for _ in route]
    sources = [random_bytes(rng, job.source + job.steps * job.stride) for _ in route]
    counters = [_random_counters(rng, 1) for _ in route]
    if start is not None:
        for each in counters:
            each[_ARRIVED] = start
    before = [np.full(job.units, c[_ARRIVED]) for c in counters]
    sent = job.increment > 0
    numbers_route = route if sent else tuple(-1 for _ in route)

    want = [area.copy() for area in areas]
    want_counters = [c.copy() for c in counters]
    for me, peer in enumerate(route):
        if peer >= 0 and sent:
            want_counters[peer][_ARRIVED] += np.uint64(job.increment * job.steps)
            for step in range(job.steps):
                at = step * job.stride
                want[peer][at + job.target : at + job.target + job.bytes] = sources[me][
                    job.source + at : job.source + at + job.bytes
                ]

    def judge(out: Outputs) -> str | None:
        for me in route:
            if me < 0:
                continue
            early = int(np.sum(out["seen"][me] != want[me]))
            if early:
                return f"the wait returned too early: {early} bytes of the data it waits for were not there yet"
            if not np.all(out["noted"][me] == 1):
                return "the signal came, but the wait did not return true"
            if not np.array_equal(out["counters"][me], want_counters[me]):
                return "the wait changed the signal, or a counter next to it; it should only look"
        return None

    seen = [np.zeros_like(area) for area in areas]
    block = max(32, job.units)
    scenario = _scenario(2, seed, route, job, block, areas, sources, counters, seen, before, numbers_route)
    return Case(scenario, judge)


# ---- task 5: pipes --------------------------------------------------------------------------------------------------
def pipe_case(rng: Rng, seed: int, job: Job, route: Route = PAIR) -> Case:
    """``steps`` rounds through each pipe; judged: each round's data, the counters, and how far the sender ran ahead."""
    job = replace(job, stride=round_up(job.target + job.slots * job.bytes + 24, 8))
    areas = [random_bytes(rng, job.units * job.stride) for _ in route]
    sources = [random_bytes(rng, max(1, job.units * job.steps * job.bytes)) for _ in route]
    counters = [_random_counters(rng, job.units) for _ in route]
    want_counters = []
    for me, each in enumerate(counters):
        table = each.reshape(-1, _COUNTERS)
        table[:, [_ARRIVED, _CREDITS]] = 0
        want = table.copy()
        want[:, _ARRIVED] = job.steps if me in route else 0
        want[:, _CREDITS] = job.steps if route[me] >= 0 else 0
        want_counters.append(want)

    def judge(out: Outputs) -> str | None:
        for me in range(len(route)):
            notes = out["noted"][me].reshape(job.units, _NOTES)
            table = out["counters"][me].reshape(-1, _COUNTERS)
            if np.any(notes[:, :2]):
                return "a pipe function returned false although nothing was late"
            if np.any(notes[:, 2] > job.slots):
                return f"the sender was {int(notes[:, 2].max())} rounds ahead in a pipe of {job.slots} slots"
            if me in route:
                sender = route.index(me)
                wrong = np.flatnonzero(out["seen"][me] != sources[sender])
                if wrong.size:
                    at = int(wrong[0]) // job.bytes % job.steps
                    return f"{wrong.size} received bytes are wrong; the first are of round {at} of {job.steps}"
            for name, index in (("arrived", _ARRIVED), ("credits", _CREDITS)):
                if np.any(table[:, index] != want_counters[me][:, index]):
                    got, want = int(table[:, index].max()), int(want_counters[me][0, index])
                    return f"after {job.steps} rounds, {name} is {got} on a rank where it should be {want}"
            if not np.array_equal(table, want_counters[me]):
                return "a counter next to the pipe's own changed"
            if _outside_slots(out["area"][me], areas[me], job, received=me in route):
                return "memory outside the pipe's slots changed"
        return None

    seen = [np.zeros_like(source) for source in sources]
    notes = [np.zeros(job.units * _NOTES, np.uint64) for _ in route]
    return Case(_scenario(5, seed, route, job, 32 * job.units, areas, sources, counters, seen, notes), judge)


def _outside_slots(got: Array, before: Array, job: Job, *, received: bool) -> bool:
    """Whether anything but the slots changed, or anything at all on a rank that receives nothing."""
    free = np.ones((job.units, job.stride), bool)
    if received:
        free[:, job.target : job.target + job.slots * job.bytes] = False
    return bool(np.any((got != before) & free.reshape(-1)))


# ---- shared ---------------------------------------------------------------------------------------------------------
def _scenario(
    task: int,
    seed: int,
    route: Route,
    job: Job,
    block: int,
    areas: Sequence[Array],
    sources: Sequence[Array],
    counters: Sequence[Array],
    seen: Sequence[Array],
    noted: Sequence[Array],
    senders: Route | None = None,
) -> Scenario:
    senders = route if senders is None else senders
    numbers = [job.numbers(senders[me], route.index(me) if me in route else -1) for me in range(len(route))]
    arrays = refs("area", "source", "counters", "seen", "noted", "numbers")
    launch = (Launch("examine", 2, block, (task, *arrays)),)
    return Scenario(
        source=SOURCE,
        ranks=len(route),
        seed=seed,
        launches=tuple(launch for _ in route),
        outputs=("area", "counters", "seen", "noted"),
        symmetric={"area": areas, "counters": counters},
        local={"source": sources, "seen": seen, "noted": noted, "numbers": numbers},
    )


def _random_counters(rng: Rng, units: int) -> NDArray[np.uint64]:
    """Counters rarely start at zero: what was there before must stay in the sum."""
    return rng.integers(1, 1 << 40, units * _COUNTERS, dtype=np.uint64)


def _counters_wrong(got: Array, want: Array, before: Array, units: int) -> str | None:
    if np.array_equal(got, want):
        return None
    others = np.ones((units, _COUNTERS), bool)
    others[:, _ARRIVED] = False
    if np.any((got != want) & others.reshape(-1)):
        return "a counter next to the signal changed"
    at = int(np.flatnonzero(got != want)[0])
    asked, grew = int(want[at]) - int(before[at]), int(got[at]) - int(before[at])
    if not asked:
        return "a signal came on a rank to which nobody sends"
    if not grew:
        return f"the signal should have grown by {asked} but is what it was before"
    if int(got[at]) == asked:
        return f"the signal was set to {asked} instead of growing by it"
    return f"the signal grew by {grew} instead of {asked}"

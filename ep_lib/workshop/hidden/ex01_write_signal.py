"""Hidden tests of exercise 01: write, then signal.

They look at values, and they run under the checker: the emulator's memory is sequentially consistent, so only the
checker sees a relaxed signal instead of a release, or a volatile load instead of an acquire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, given, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_bytes, round_up
from ep_lib.workshop.hidden.judging import each_rank, memory_wrong
from ep_lib.workshop.hidden.networks import BACK, BOTH, PAIR, Route, senders

_ROUTES: tuple[Route, ...] = (BACK, BOTH, (1, 2, 0), (2, 0, 1), (-1, 3, -1, 1), (3, 2, 1, 0), (1, 2, 3, 0))

# Mirrors constants of the .cu file.
_COUNTERS, _ARRIVED, _CREDITS, _NOTES = 8, 2, 5, 4
_NEVER, _CAME, _BLAMES_OTHER = range(3)

_Job = job_of(__file__)


_BETWEEN = "is there a __syncwarp() between the last write and the signal, which one lane sends?"
_LATE = {1: "which comes first, the data or the signal?", 3: _BETWEEN, 4: _BETWEEN}


# ---- tasks 1, 3 and 4: the learner sends ---------------------------------------------------------------------------
def _writes(task: int, job: Job) -> list[tuple[int, int]]:
    """(offset, bytes) of each write of a unit's message."""
    if task != 4:
        return [(0, job.bytes)]
    writes, offset = [], 0
    for i in range(job.steps):
        size = job.bytes * ((i + job.steps - job.steps // 2) % job.steps) // job.steps
        writes.append((offset, size))
        offset += size + 3
    return writes


def _message_case(rng: Rng, task: int, job: Job, route: Route = PAIR) -> Case:
    """One message per unit along ``route``; judges memory at the signal and at the end, and every counter."""
    writes = _writes(task, job)
    extent = max((offset + size for offset, size in writes), default=0)
    job = replace(job, stride=round_up(job.target + extent + 40, 8))
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

    def judge(out: Outputs, me: int) -> str | None:
        if me not in route and not np.array_equal(out["area"][me], areas[me]):
            return f"the memory of rank {me} changed, but no rank sends to it"
        problem = _counters_wrong(out["counters"][me], want_counters[me], counters[me], job.units) or memory_wrong(
            out["area"][me], want_area[me], in_message, "in the end"
        )
        late = int(np.sum((out["seen"][me] != want_area[me]) & in_message))
        if problem or me not in route or not late:
            return problem
        return f"when the signal arrived, {late} of {int(in_message.sum())} bytes had not arrived: {_LATE[task]}"

    block = max(32, job.units if task == 1 else 32 * job.units)
    scenario = _scenario(route, job, block, areas, sources, counters, areas[0].size, before)
    return Case(scenario, each_rank(len(route), judge))


# ---- task 2: the learner waits --------------------------------------------------------------------------------------
def _wait_case(rng: Rng, job: Job, route: Route = PAIR, start: int | None = None) -> Case:
    """``steps`` signals, each after its data; judges the data that had come when the learner's wait returned."""
    job = replace(job, stride=round_up(job.target + job.bytes + 8, 8 * job.units))
    areas = [random_bytes(rng, job.steps * job.stride) for _ in route]
    sources = [random_bytes(rng, job.source + job.steps * job.stride) for _ in route]
    counters = [_random_counters(rng, 1) for _ in route]
    if start is not None:
        for each in counters:
            each[_ARRIVED] = start
    before = [np.full(job.units, c[_ARRIVED]) for c in counters]
    sent = job.increment > 0

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

    def judge(out: Outputs, me: int) -> str | None:
        if me not in route:
            return None
        early = int(np.sum(out["seen"][me] != want[me]))
        if early:
            return f"the wait returned too early: {early} bytes of the data it waits for were not there yet"
        if not np.all(out["noted"][me] == _CAME):
            return "the signal came, but the wait did not return true"
        if not np.array_equal(out["counters"][me], want_counters[me]):
            return "the wait changed the signal, or a counter next to it; it should only look"
        return None

    block = max(32, job.units)
    scenario = _scenario(route, job, block, areas, sources, counters, areas[0].size, before, sends=sent)
    return Case(scenario, each_rank(len(route), judge))


# ---- task 5: pipes --------------------------------------------------------------------------------------------------
def pipe_case(rng: Rng, job: Job, route: Route = PAIR) -> Case:
    """``steps`` rounds through each pipe; judges each round's data, the counters, and how far the sender ran ahead."""
    job = replace(job, stride=round_up(job.target + job.slots * job.bytes + 24, 8))
    areas = [random_bytes(rng, job.units * job.stride) for _ in route]
    sources = [random_bytes(rng, job.source + max(1, job.units * job.steps * job.bytes)) for _ in route]
    counters = [_random_counters(rng, job.units) for _ in route]
    want_counters = []
    for me, each in enumerate(counters):
        table = each.reshape(-1, _COUNTERS)
        table[:, [_ARRIVED, _CREDITS]] = job.first
        want = table.copy()
        want[:, _ARRIVED] += np.uint64(job.steps if me in route else 0)
        want[:, _CREDITS] += np.uint64(job.steps if route[me] >= 0 else 0)
        want_counters.append(want)

    def judge(out: Outputs, me: int) -> str | None:
        notes = out["noted"][me].reshape(job.units, _NOTES)
        table = out["counters"][me].reshape(-1, _COUNTERS)
        if np.any(notes[:, :2]):
            return "a pipe function returned false although nothing was late"
        if np.any(notes[:, 2] > job.slots):
            ahead, slots = int(notes[:, 2].max()), f"{job.slots} slot{'s' * (job.slots > 1)}"
            return f"pipe_send_warp waited for too few credits: it was {ahead} rounds ahead in a pipe of {slots}"
        if me in route:
            source, seen = sources[route.index(me)], out["seen"][me]
            if np.any(seen[: job.source]):
                return "memory before `target` was written"
            if found := _rounds_wrong(seen[job.source :], source[job.source :], areas[me], job):
                return found
        for name, index in (("arrived", _ARRIVED), ("credits", _CREDITS)):
            if np.any(table[:, index] != want_counters[me][:, index]):
                got, want = int(table[:, index].max()), int(want_counters[me][0, index])
                return f"after {job.steps} rounds, {name} is {got} on a rank where it should be {want}"
        if not np.array_equal(table, want_counters[me]):
            return "a counter next to the pipe's own changed"
        if _outside_slots(out["area"][me], areas[me], job, received=me in route):
            return "memory outside the pipe's slots changed"
        return None

    notes = [np.zeros(job.units * _NOTES, np.uint64) for _ in route]
    scenario = _scenario(route, job, 32 * job.units, areas, sources, counters, np.zeros_like(sources[0]), notes)
    return Case(scenario, each_rank(len(route), judge))


def _alone_case(rng: Rng, sends: bool) -> Case:
    """One end of a pipe of two slots without the other: the sender's third round, or the receiver's first, gives up."""
    case = pipe_case(rng, _Job(bytes=80, slots=2, steps=3, own_receive=2 * sends, own_send=2 * (not sends)))
    source = given(case, "source")

    def judge(out: Outputs) -> str | None:
        who, done = (0, 2) if sends else (1, 0)
        if not out["noted"][who].reshape(-1, _NOTES)[0, 0 if sends else 1]:
            return "a wait ran into its limit, and the function did not return false"
        if int(out["counters"][1][_ARRIVED]) != done or int(out["counters"][0][_CREDITS]):
            return "a wait ran into its limit, and a counter grew all the same"
        if np.any(out["area"][1][: done * 80] != source[: done * 80]) or np.any(out["seen"][1]):
            return "a wait ran into its limit, and data moved all the same"
        return None

    return replace(case, judge=judge, endless=True)


def _rounds_wrong(got: Array, sent: Array, area: Array, job: Job) -> str | None:
    """A problem in the data that a receiver took out of its pipes: whether the first round with wrong bytes was taken
    too late, when another one was in its slot already, or too early. ``area``: the pipes' memory before."""
    if job.steps == 0 or np.array_equal(got, sent):
        return None
    shape = job.units, job.steps, job.bytes
    got, sent = got[: np.prod(shape)].reshape(shape), sent[: np.prod(shape)].reshape(shape)
    wrong = got != sent
    at, unit = min((int(at), int(unit)) for unit, at in zip(*np.nonzero(wrong.any(axis=2)), strict=True))
    slot = (job.first + at) % job.slots
    begin = unit * job.stride + job.target + slot * job.bytes
    before = area[begin : begin + job.bytes] if at < job.slots else sent[unit, at - job.slots]
    later = sent[unit, at + job.slots] if at + job.slots < job.steps else None
    there, where = got[unit, at], wrong[unit, at]
    number = int(where.sum())
    text = f"{number} bytes that were received in round {job.first + at} are"
    if later is not None and np.array_equal(there[where], later[where]):
        other = job.first + at + job.slots
        return f"{text} those of round {other}: slot {slot} was overwritten too early, {_too_early(job)}"
    if np.array_equal(there[where], before[where]):
        return f"{text} what was in slot {slot} before: they were taken before they had arrived"
    return f"{int(wrong.sum())} received bytes are wrong; the first are of round {at} of {job.steps}"


def _too_early(job: Job) -> str:
    sender = "pipe_send_warp waited for too few credits"
    receiver = "pipe_receive_warp gave the credit before all lanes had copied their part"
    return f"since {sender if job.own_receive else receiver if job.own_send else f'{sender}, or {receiver}'}"


def _outside_slots(got: Array, before: Array, job: Job, *, received: bool) -> bool:
    """Whether anything but the slots changed, or anything at all on a rank that receives nothing."""
    free = np.ones((job.units, job.stride), bool)
    if received:
        free[:, job.target : job.target + job.slots * job.bytes] = False
    return bool(np.any((got != before) & free.reshape(-1)))


# ---- shared ---------------------------------------------------------------------------------------------------------
def _scenario(
    route: Route,
    job: Job,
    block: int,
    areas: Sequence[Array],
    sources: Sequence[Array],
    counters: Sequence[Array],
    seen: Array | int,
    noted: Sequence[Array],
    *,
    sends: bool = True,
) -> Scenario:
    ways = zip(route if sends else [-1] * len(route), senders(route), strict=True)
    return Scenario(
        ranks=len(route),
        launches=Launch(2, block),
        called_by="warp",
        outputs=("area", "counters", "seen", "noted"),
        symmetric={"area": areas, "counters": counters},
        local={
            "source": sources,
            "seen": Room(seen, np.uint8) if isinstance(seen, int) else seen,
            "noted": noted,
            "numbers": [job_numbers(job, *each) for each in ways],
        },
    )


def _random_counters(rng: Rng, units: int) -> NDArray[np.uint64]:
    """Initial counters, rarely zero: the earlier value must stay in the sum."""
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


# ---- what is asked --------------------------------------------------------------------------------------------------
_SIZES = (0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 63, 100, 127, 128, 511, 512, 513, 1000, 4096, 5001)
_OFFSETS = ((0, 0), (1, 0), (0, 3), (5, 5), (8, 4), (15, 2))


@drawn
def _sizes(rng: Rng, task: int) -> Iterator[Case]:
    for number, size in enumerate(_SIZES):
        target, source = _OFFSETS[number % len(_OFFSETS)]
        increment = 1 + number % 3 * 1000 + (number % 2 << 40)
        job = _Job(bytes=size, target=target, source=source, increment=increment, steps=1 + number % 5)
        yield _message_case(rng, task, job)


@drawn
def _order(rng: Rng, task: int) -> Iterator[Case]:
    for number in range(10):
        units, size = ((1, 4096), (4, 4096), (1, 20000), (3, 9001), (1, 100001))[number % 5]
        yield _message_case(rng, task, _Job(units=units, bytes=size, increment=number + 1, steps=4))


def _signals(task: int) -> Cases:
    """Small messages, since the checker finds missing order in any schedule."""
    job = _Job(units=4 if task == 1 else 2, bytes=320, target=16, steps=4)
    return under_checker(several(_message_case, (task, job), (task, replace(job, increment=2), (1, 2, 0))))


def _peers(task: int) -> Cases:
    job = _Job(increment=7, steps=3)
    return several(_message_case, *((task, replace(job, bytes=200 + n), route) for n, route in enumerate(_ROUTES)))


def _side_by_side(task: int, units: int) -> Cases:
    job = _Job(units=units, bytes=150, increment=3, steps=2)
    return several(_message_case, *((task, job, route) for route in (PAIR, BOTH, (1, 2, 0))))


@drawn
def _write_counts(rng: Rng) -> Iterator[Case]:
    for count in (0, 1, 2, 3, 8, 16, int(rng.integers(33, 60)), 256, int(rng.integers(257, 400))):
        yield _message_case(rng, 4, _Job(bytes=90, steps=count, increment=5))


def _waits(*jobs: Job) -> Cases:
    return several(_wait_case, *((job,) for job in jobs))


@drawn
def _waits_for_data(rng: Rng) -> Iterator[Case]:
    for number in range(12):
        job = _Job(bytes=300, steps=1 + number % 4, increment=1 + number % 2 * 4, delay=(0, 3, 40)[number % 3])
        yield _wait_case(rng, job, (PAIR, BOTH, (1, 2, 0))[number % 3])


@drawn
def _waits_in_vain(rng: Rng) -> Iterator[Case]:
    """A signal that stays one below the awaited value."""

    def judge(out: Outputs) -> str | None:
        said = int(out["noted"][1][0])
        return {
            _CAME: "the signal never came, and the wait returned true",
            _BLAMES_OTHER: "the signal never came, and the recorded fault is not about {kPhaseSignal, peer, -1}",
        }.get(said)

    yield replace(_wait_case(rng, _Job(bytes=8, increment=0, expect_less=-1)), judge=judge, endless=True)


@drawn
def _pipes(rng: Rng, /, count: int, **numbers: int) -> Iterator[Case]:
    for number in range(count):
        slots, size = 1 + number % 4, (64, 5000, 33, 1024, 9000)[number % 5]
        job = _Job(bytes=size, slots=slots, steps=3 * slots + 2, target=number % 2 * 16, source=3 * (size == 64))
        yield pipe_case(rng, replace(job, delay=60, **numbers))


@drawn
def _rounds(rng: Rng, /, *shapes: tuple[int, int], **numbers: int) -> Iterator[Case]:
    """Each of ``shapes`` is (slots, rounds)."""
    for slots, rounds in shapes:
        yield pipe_case(rng, replace(_Job(bytes=48, slots=slots, steps=rounds), **numbers))


def _pipes_in_order(**numbers: int) -> Cases:
    return under_checker(_rounds((1, 8), (3, 8), bytes=480, delay=60, **numbers))


_RELEASE = "Data first, then the signal, which is a release (or follows a fence in the same thread)."
_ALL_LANES = (
    "A barrier hands what all lanes wrote to the one that signals; its release, or a fence and a relaxed signal, comes "
    "after the barrier."
)
_ACQUIRE = "A load that may end the wait is an acquire: it makes visible what came before the signal."
_ALONE = "Of a warp, one thread may call alone, while the others are somewhere else."
_GONE = "After the limit it returns false, and the report says who was waited for."
_LAST = "When may the slot change?"
_CREDIT = "A slot is free only when the round before has been taken out of it: how many credits is that?"

_ADDRESS = "Is every address the peer's own?"
_LANE = "A lane is lane_id(), not threadIdx.x."
_OLD = {"first": (1 << 32) - 3}
_LARGER = _waits(*(_Job(bytes=40, steps=3, increment=3 + n, expect_less=2, delay=n) for n in range(6)))
_IN_ORDER = _waits(*(_Job(units=units, bytes=320, steps=3, delay=20) for units in (1, 32)))
_THERE = _waits(*(_Job(bytes=8, increment=0, expect_less=less) for less in range(3)))
_TOGETHER = _waits(*[_Job(units=64, bytes=500, steps=3, increment=2, delay=10)] * 4)
# A receiver that takes a round only when no slot is free: a sender that waits for more than its slot never continues.
_FULL = _rounds(*((slots, 3 * slots + 1) for slots in (1, 2, 3, 5)), own_receive=3)
_STEPS = _Job(bytes=64, steps=3, increment=2, delay=20)
_BITS = several(_wait_case, *((_STEPS, PAIR, start) for start in ((1 << 32) - 2, (1 << 31) - 1, (1 << 63) - 2)))
_PEERS = several(pipe_case, *((_Job(1 + n % 3, 80, slots=2, steps=7), route) for n, route in enumerate(_ROUTES)))
_ALONE_ENDS = several(_alone_case, (True,), (False,))
_SHAPES = _rounds((1, 1), (3, 2), (4, 4), (4, 5), (2, 40), (5, 33), (300, 310))
_AGES = (
    _rounds((3, 7), **_OLD),
    _rounds((3, 7), (1, 7), own_send=1, **_OLD),
    _rounds((3, 7), own_receive=1, delay=60, **_OLD),
)

BEHAVIOURS = (
    Behaviour(1, "messages of every size arrive whole, and the signal grows by the increment", _sizes(1)),
    Behaviour(1, "a rank that sees the signal may read the data", _signals(1), _RELEASE),
    Behaviour(1, "the data is there when the signal arrives", _order(1)),
    Behaviour(1, "it works between all ranks, in both directions", _peers(1), _ADDRESS),
    Behaviour(1, "many threads send at once", _side_by_side(1, 40)),
    Behaviour(2, "the data is there when the wait returns", _waits_for_data(), _ALONE),
    Behaviour(2, "a signal that is already larger is enough", _LARGER, "Is it >= that you wait for?"),
    Behaviour(2, "what came before the signal may be read after the wait", under_checker(_IN_ORDER), _ACQUIRE),
    Behaviour(2, "it returns at once if the signal is already there", _THERE),
    Behaviour(2, "signals are 64 bits wide", _BITS),
    Behaviour(2, "many threads can wait for the same signal", _TOGETHER),
    Behaviour(2, "a wait for what never comes does not succeed", _waits_in_vain(), _GONE),
    Behaviour(3, "messages of every size arrive whole, and one signal comes", _sizes(3)),
    Behaviour(3, "a rank that sees the signal may read what all lanes wrote", _signals(3), _ALL_LANES),
    Behaviour(3, "the data of all lanes is there when the signal arrives", _order(3)),
    Behaviour(3, "it works between all ranks, in both directions", _peers(3), _ADDRESS),
    Behaviour(3, "several warps of a block send at once", _side_by_side(3, 4), _LANE),
    Behaviour(4, "any number of writes, also none, comes with one signal", _write_counts()),
    Behaviour(4, "writes of every size arrive whole", _sizes(4)),
    Behaviour(4, "a rank that sees the signal may read what all lanes wrote", _signals(4), _ALL_LANES),
    Behaviour(4, "all writes are there when the signal arrives", _order(4)),
    Behaviour(4, "several warps of a block send at once", _side_by_side(4, 4), _LANE),
    # First each end alone, against the grader's other end, so that a failure belongs to that end.
    Behaviour(5, "the sender waits for its slot's credit, and for no other", _FULL, _CREDIT),
    Behaviour(5, "no slot is overwritten before it was taken", _pipes(5, own_receive=1), _CREDIT),
    Behaviour(5, "the sender waits for the credit, and signals last", _pipes_in_order(own_receive=1), _CREDIT),
    Behaviour(5, "the receiver waits for the data, and gives the credit last", _pipes_in_order(own_send=1), _LAST),
    Behaviour(5, "no credit is given before the data has been copied", _pipes(10, own_send=1), _LAST),
    Behaviour(5, "any number of rounds goes through, whatever the number of slots", _SHAPES),
    Behaviour(5, "both ends work together", _pipes(10)),
    Behaviour(5, "rounds beyond 32 bits", all_of(*_AGES), "Rounds and counters have 64 bits."),
    Behaviour(5, "nothing moves after a wait that failed", _ALONE_ENDS, "A wait that returns false is the end."),
    Behaviour(5, "several pipes at once, between all ranks", _PEERS, _LANE),
)

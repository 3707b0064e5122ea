"""Hidden tests of exercise 01: write, then signal.

They look at values, and they run under the checker: the emulator's memory is sequentially consistent, so only the
checker sees a relaxed signal instead of a release, or a volatile load instead of an acquire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ep_lib.workshop.hidden import (
    BACK,
    BOTH,
    PAIR,
    Behaviour,
    Case,
    Cases,
    Rng,
    Route,
    job_numbers,
    memory_wrong,
    of_kernels,
    one,
    random_bytes,
    refs,
    rehearsed,
    round_up,
    under_checker,
)
from ep_lib.workshop.scenario import Array, Launch, Outputs, Scenario

SOURCE = str(Path(__file__).with_name("ex01_write_signal.cu"))
KERNELS = ((SOURCE, "examine"),)

_ROUTES: tuple[Route, ...] = (BACK, BOTH, (1, 2, 0), (2, 0, 1), (-1, 3, -1, 1), (3, 2, 1, 0), (1, 2, 3, 0))

# Mirrors constants of the .cu file.
_COUNTERS, _ARRIVED, _CREDITS, _NOTES = 8, 2, 5, 4
_NEVER, _CAME, _BLAMES_OTHER = range(3)


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
    first: int = 0


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


def message_case(task: int, rng: Rng, seed: int, job: Job, route: Route = PAIR) -> Case:
    """One message per unit along ``route``; judges memory at the signal and in the end, and every counter."""
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
                return f"the memory of rank {me} changed, but no rank sends to it"
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
    """``steps`` signals, each after its data; judges what was there when the learner's wait returned."""
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
            if not np.all(out["noted"][me] == _CAME):
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

    def judge(out: Outputs) -> str | None:
        for me in range(len(route)):
            notes = out["noted"][me].reshape(job.units, _NOTES)
            table = out["counters"][me].reshape(-1, _COUNTERS)
            if np.any(notes[:, :2]):
                return "a pipe function returned false although nothing was late"
            if np.any(notes[:, 2] > job.slots):
                ahead, slots = int(notes[:, 2].max()), f"{job.slots} slot{'s' * (job.slots > 1)}"
                return f"pipe_send_warp waited for too few credits: it was {ahead} rounds ahead in a pipe of {slots}"
            if me in route:
                sender = route.index(me)
                seen_here = out["seen"][me]
                if np.any(seen_here[: job.source]):
                    return "memory before `target` was written"
                if found := _rounds_wrong(seen_here[job.source :], sources[sender][job.source :], areas[me], job):
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

    seen = [np.zeros_like(source) for source in sources]
    notes = [np.zeros(job.units * _NOTES, np.uint64) for _ in route]
    return Case(_scenario(5, seed, route, job, 32 * job.units, areas, sources, counters, seen, notes), judge)


def alone_case(rng: Rng, seed: int, *, sends: bool) -> Case:
    """One end of a pipe of two slots without the other: the sender's third round, or the receiver's first, gives up."""
    case = pipe_case(rng, seed, Job(bytes=80, slots=2, steps=3, own_receive=2 * sends, own_send=2 * (not sends)))
    (source, *_) = of_kernels(case).local["source"]

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
    """Of what a receiver took out of its pipes; ``area``: where they lie, as it was before. Says whether the first
    round with wrong bytes was taken too late, when another one was in its slot already, or too early."""
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
    numbers = [job_numbers(job, senders[me], route.index(me) if me in route else -1) for me in range(len(route))]
    arrays = refs("area", "source", "counters", "seen", "noted", "numbers")
    launch = (Launch("examine", 2, block, (task, *arrays)),)
    return Scenario(
        source=SOURCE,
        ranks=len(route),
        seed=seed,
        launches=tuple(launch for _ in route),
        called_by="warp",
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


# ---- what is asked --------------------------------------------------------------------------------------------------
_SIZES = (0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 63, 100, 127, 128, 511, 512, 513, 1000, 4096, 5001)
_OFFSETS = ((0, 0), (1, 0), (0, 3), (5, 5), (8, 4), (15, 2))


def _sizes(task: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for number, size in enumerate(_SIZES):
            target, source = _OFFSETS[number % len(_OFFSETS)]
            increment = 1 + number % 3 * 1000 + (number % 2 << 40)
            job = Job(bytes=size, target=target, source=source, increment=increment, steps=1 + number % 5)
            yield message_case(task, rng, 100 + number, job)

    return cases


def _order(task: int, seeds: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed in range(seeds):
            units, size = ((1, 4096), (4, 4096), (1, 20000), (3, 9001), (1, 100001))[seed % 5]
            yield message_case(task, rng, 1000 + seed, Job(units=units, bytes=size, increment=seed + 1, steps=4))

    return cases


def _signals(task: int) -> Cases:
    """Small messages: the checker sees what is not ordered in any schedule."""

    def cases(rng: Rng) -> Iterator[Case]:
        units = 4 if task == 1 else 2
        for seed, route in enumerate((PAIR, (1, 2, 0))):
            job = Job(units=units, bytes=320, target=16, increment=1 + seed, steps=4)
            yield message_case(task, rng, 1500 + 10 * seed, job, route)

    return under_checker(cases)


def _peers(task: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for number, route in enumerate(_ROUTES):
            yield message_case(task, rng, 2000 + number, Job(bytes=200 + number, increment=7, steps=3), route)

    return cases


def _side_by_side(task: int, units: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, route in enumerate((PAIR, BOTH, (1, 2, 0))):
            yield message_case(task, rng, 3000 + seed, Job(units=units, bytes=150, increment=3, steps=2), route)

    return cases


def _write_counts(rng: Rng) -> Iterator[Case]:
    for count in (0, 1, 2, 3, 8, 16, int(rng.integers(33, 60)), 256, int(rng.integers(257, 400))):
        yield message_case(4, rng, 4000 + count, Job(bytes=90, steps=count, increment=5))


def _waits_for_data(rng: Rng) -> Iterator[Case]:
    for seed in range(12):
        job = Job(bytes=300, steps=1 + seed % 4, increment=1 + seed % 2 * 4, delay=(0, 3, 40)[seed % 3])
        yield wait_case(rng, 5000 + seed, job, (PAIR, BOTH, (1, 2, 0))[seed % 3])


def _waits_in_order(rng: Rng) -> Iterator[Case]:
    for seed, units in enumerate((1, 32)):
        yield wait_case(rng, 5050 + 10 * seed, Job(units=units, bytes=320, steps=3, delay=20))


def _waits_at_least(rng: Rng) -> Iterator[Case]:
    for seed in range(6):
        yield wait_case(rng, 5100 + seed, Job(bytes=40, steps=3, increment=3 + seed, expect_less=2, delay=seed))


def _waits_no_longer(rng: Rng) -> Iterator[Case]:
    for seed in range(3):
        yield wait_case(rng, 5200 + seed, Job(bytes=8, increment=0, expect_less=seed))


def _waits_64_bits(rng: Rng) -> Iterator[Case]:
    for seed, start in enumerate(((1 << 32) - 2, (1 << 31) - 1, (1 << 63) - 2)):
        yield wait_case(rng, 5300 + seed, Job(bytes=64, steps=3, increment=2, delay=20), start=start)


def _waits_in_vain(rng: Rng) -> Iterator[Case]:
    """A signal that stays one below what is waited for."""
    case = wait_case(rng, 5500, Job(bytes=8, increment=0, expect_less=-1))

    def judge(out: Outputs) -> str | None:
        said = int(out["noted"][1][0])
        return {
            _CAME: "the signal never came, and the wait returned true",
            _BLAMES_OTHER: "the signal never came, and the recorded fault is not about {kPhaseSignal, peer, -1}",
        }.get(said)

    yield replace(case, judge=judge, endless=True)


def _waits_many_threads(rng: Rng) -> Iterator[Case]:
    for seed in range(4):
        yield wait_case(rng, 5400 + seed, Job(units=64, bytes=500, steps=3, increment=2, delay=10))


def _pipes(seeds: int, **numbers: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed in range(seeds):
            slots = 1 + seed % 4
            size = (64, 5000, 33, 1024, 9000)[seed % 5]
            job = Job(
                bytes=size, slots=slots, steps=3 * slots + 2, target=seed % 2 * 16, source=3 * (size == 64), delay=60
            )
            yield pipe_case(rng, 6000 + seed, replace(job, **numbers))

    return cases


def _pipes_in_order(**numbers: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, slots in enumerate((1, 3)):
            yield pipe_case(rng, 6400 + 10 * seed, Job(bytes=480, slots=slots, steps=8, delay=60, **numbers))

    return under_checker(cases)


def _pipe_rounds(rng: Rng) -> Iterator[Case]:
    for seed, (slots, rounds) in enumerate(((1, 1), (3, 2), (4, 4), (4, 5), (2, 40), (5, 33), (300, 310))):
        yield pipe_case(rng, 6500 + seed, Job(bytes=48, slots=slots, steps=rounds))


def _pipe_is_full(rng: Rng) -> Iterator[Case]:
    """A receiver that takes a round when no slot is free: a sender that waits for more than its slot never goes on."""
    for seed, slots in enumerate((1, 2, 3, 5)):
        yield pipe_case(rng, 6540 + seed, Job(bytes=48, slots=slots, steps=3 * slots + 1, own_receive=3))


def _pipe_grows_old(rng: Rng) -> Iterator[Case]:
    for seed, own in enumerate(({}, {"own_send": 1}, {"own_receive": 1, "delay": 60})):
        yield pipe_case(rng, 6550 + seed, Job(bytes=48, slots=3, steps=7, first=(1 << 32) - 3, **own))


def _pipe_alone(rng: Rng) -> Iterator[Case]:
    yield alone_case(rng, 6580, sends=True)
    yield alone_case(rng, 6581, sends=False)


def _pipe_peers(rng: Rng) -> Iterator[Case]:
    for seed, route in enumerate(_ROUTES):
        yield pipe_case(rng, 6600 + seed, Job(units=1 + seed % 3, bytes=80, slots=2, steps=7), route)


_RELEASE = "Data first, then the signal, which is a release (or follows a fence in the same thread)."
_ALL_LANES = (
    "A barrier hands what all lanes wrote to the one that signals; its release, or a fence and a relaxed signal, comes "
    "after the barrier."
)
_ACQUIRE = "A load that may end the wait is an acquire: it makes visible what came before the signal."
_ALONE = "Of a warp, one thread may call alone, while the others are somewhere else."
_LAST = "When may the slot change?"
_CREDIT = "A slot is free only when the round before has been taken out of it: how many credits is that?"

BEHAVIOURS = (
    Behaviour(1, "messages of every size arrive whole, and the signal grows by the increment", _sizes(1)),
    Behaviour(1, "a rank that sees the signal may read the data", _signals(1), _RELEASE),
    Behaviour(1, "the data is there when the signal arrives", _order(1, 10)),
    Behaviour(1, "it works between all ranks, in both directions", _peers(1), "Is every address the peer's own?"),
    Behaviour(1, "many threads send at once", _side_by_side(1, 40)),
    Behaviour(2, "the data is there when the wait returns", _waits_for_data, _ALONE),
    Behaviour(2, "a signal that is already larger is enough", _waits_at_least, "Is it >= that you wait for?"),
    Behaviour(2, "what came before the signal may be read after the wait", under_checker(_waits_in_order), _ACQUIRE),
    Behaviour(2, "it returns at once if the signal is already there", _waits_no_longer),
    Behaviour(2, "signals are 64 bits wide", _waits_64_bits),
    Behaviour(2, "many threads can wait for the same signal", _waits_many_threads),
    Behaviour(
        2,
        "a wait for what never comes does not succeed",
        _waits_in_vain,
        "After the limit it returns false, and the report says who was waited for.",
    ),
    Behaviour(3, "messages of every size arrive whole, and one signal comes", _sizes(3)),
    Behaviour(3, "a rank that sees the signal may read what all lanes wrote", _signals(3), _ALL_LANES),
    Behaviour(3, "the data of all lanes is there when the signal arrives", _order(3, 10)),
    Behaviour(3, "it works between all ranks, in both directions", _peers(3), "Is every address the peer's own?"),
    Behaviour(3, "several warps of a block send at once", _side_by_side(3, 4), "A lane is lane_id(), not threadIdx.x."),
    Behaviour(4, "any number of writes, also none, comes with one signal", _write_counts),
    Behaviour(4, "writes of every size arrive whole", _sizes(4)),
    Behaviour(4, "a rank that sees the signal may read what all lanes wrote", _signals(4), _ALL_LANES),
    Behaviour(4, "all writes are there when the signal arrives", _order(4, 10)),
    Behaviour(4, "several warps of a block send at once", _side_by_side(4, 4), "A lane is lane_id(), not threadIdx.x."),
    # First one end alone, and the other is the grader's: what fails then is told of that end.
    Behaviour(5, "the sender waits for its slot's credit, and for no other", _pipe_is_full, _CREDIT),
    Behaviour(5, "no slot is overwritten before it was taken", _pipes(5, own_receive=1), _CREDIT),
    Behaviour(5, "the sender waits for the credit, and signals last", _pipes_in_order(own_receive=1), _CREDIT),
    Behaviour(5, "the receiver waits for the data, and gives the credit last", _pipes_in_order(own_send=1), _LAST),
    Behaviour(5, "no credit is given before the data has been copied", _pipes(10, own_send=1), _LAST),
    Behaviour(5, "any number of rounds goes through, whatever the number of slots", _pipe_rounds),
    Behaviour(5, "both ends work together", _pipes(10)),
    Behaviour(5, "rounds beyond 32 bits", _pipe_grows_old, "Rounds and counters have 64 bits."),
    Behaviour(5, "nothing moves after a wait that failed", _pipe_alone, "A wait that returns false is the end."),
    Behaviour(5, "several pipes at once, between all ranks", _pipe_peers, "A lane is lane_id(), not threadIdx.x."),
)


PUBLIC = (
    Behaviour(1, "64 bytes arrive, and the signal grows by 1", one(lambda rng: message_case(1, rng, 1, Job()))),
    Behaviour(1, "the data is there when the signal arrives", _signals(1), _RELEASE),
    Behaviour(
        2, "three signals, each after its data", one(lambda rng: wait_case(rng, 1, Job(steps=3, delay=20))), _ALONE
    ),
    Behaviour(2, "a signal that is already larger is enough", _waits_at_least, "Is it >= that you wait for?"),
    Behaviour(
        2,
        "what came before the signal may be read after the wait",
        under_checker(_waits_in_order, 2),
        _ACQUIRE,
    ),
    Behaviour(3, "64 bytes arrive, and the signal grows by 1", one(lambda rng: message_case(3, rng, 1, Job()))),
    Behaviour(3, "the data of all lanes is there when the signal arrives", _signals(3), _ALL_LANES),
    Behaviour(4, "three writes come with one signal", one(lambda rng: message_case(4, rng, 1, Job(steps=3)))),
    Behaviour(5, "two rounds go through two slots", one(lambda rng: pipe_case(rng, 1, Job(slots=2, steps=2)))),
    *rehearsed(BEHAVIOURS),
    Behaviour(5, "five rounds go through two slots", one(lambda rng: pipe_case(rng, 1, Job(slots=2, steps=5)))),
)

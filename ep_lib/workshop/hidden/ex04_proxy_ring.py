"""Hidden tests of exercise 04_proxy_ring: pushes by threads and warps, against a proxy that the grader plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.jit.device_state import FAULT_NONE
from ep_lib.transports.proxy.rings import CREDITS, PRODUCER, op
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, given, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of
from ep_lib.workshop.hidden.judging import fault_of

# Mirrors constants of the .cu file.
_ROOM, _FILL, _PUSH, _PUSH_WARP, _WAIT, _FLUSH = (1 << bit for bit in range(6))
_WORDS, _LANES = 8, 32
_HEAD_AT = (CREDITS.size + PRODUCER.offsets["head"]) // 8
_PEERS, _QUEUE_PAIRS, _WIDE_PEER, _WIDE_QUEUE_PAIR = 7, 5, 9361, 13107
_NO_NUMBER = 3  # every third push of a thread asks for no number
_OLD = (1 << 32) - 3  # number of the first command of a ring that has served many

_Job = job_of(__file__)


def _case(rng: Rng, job: Job, threads: int, lag: int = 0) -> Case:
    """Judges the commands that the proxy took, and the numbers that pushes returned."""
    total = job.each * (threads // _LANES * job.lanes if job.lanes else threads)
    job = replace(job, served=total if job.served < 0 else job.served)
    payload = rng.integers(1, 1 << 40, total).astype(np.uint64)
    before = rng.integers(1, 1 << 60, (job.num_slots, _WORDS)).astype(np.uint64)
    before[:, -1] = 0  # the numbers: all slots are empty
    counters = np.zeros((CREDITS.size + PRODUCER.size) // 8, np.uint64)
    for at in (CREDITS.offsets["taken"] // 8, CREDITS.offsets["completed"] // 8, _HEAD_AT):
        counters[at] = job.first

    def judge(out: Outputs) -> str | None:
        noted, taken = out["noted"][0].astype(np.int64), out["taken"][0]
        if noted[2 * total]:
            return "a push or a wait gave up, although the proxy takes every command"
        told, came = noted[: 2 * total : 2], _places(taken)
        if problem := _commands_wrong(taken, payload, wide=job.learners == _FILL):
            return problem
        other = told[came] != np.arange(total)
        if job.learners & _PUSH:
            other &= came % _NO_NUMBER != _NO_NUMBER - 1
        if np.any(other):
            index = int(came[np.flatnonzero(other)[0]])
            return f"a push told its caller number {told[index]}; it is command {int(np.flatnonzero(came == index)[0])}"
        if job.lanes and np.any(np.diff(told.reshape(-1, job.lanes), axis=1) != 1):
            return "the commands of a warp's lanes do not follow each other in the order of the lanes"
        if job.learners & (_WAIT | _FLUSH) and np.any(noted[1 : 2 * total : 2] != 1000 + told):
            return "after the wait, what its command brought was not there"
        return _head_wrong(out, job, total)

    scenario = Scenario(
        ranks=2,
        launches=((Launch(1, threads),), (Launch(1, 1),)),
        called_by="warp",
        outputs=("slots", "counters", "taken", "noted"),
        symmetric={  # all begin at a cache line, as the structs require
            "slots": before,
            "counters": counters,
            "payload": np.concatenate([payload, np.zeros_like(payload)]),
            "results": np.zeros(total, np.uint64),
            "taken": Room((total, _WORDS + 1), np.uint64),
        },
        local={
            "noted": np.zeros(2 * total + 1 + 6, np.uint64),
            "numbers": np.append(job_numbers(job), [total, lag]),
        },
    )
    return Case(scenario, judge)


def _head_wrong(out: Outputs, job: Job, total: int) -> str | None:
    head = int(out["counters"][0][_HEAD_AT]) - job.first
    return None if head == total else f"head has grown by {head} in the end; {total} commands were pushed"


def _places(taken: Array) -> Array:
    """The place in the payload of each command that was taken."""
    return (taken[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _commands_wrong(taken: Array, payload: Array, *, wide: bool) -> str | None:
    total = len(payload)
    source = _places(taken).astype(np.uint64)
    if np.any(source >= total) or len(np.unique(source)) != total:
        lost = total - len(np.unique(source[source < total]))
        return f"{lost} of {total} commands were lost: the proxy took others twice, or words of no command"
    salt = payload[source.astype(np.int64)]
    peer = source % np.uint64(_PEERS) * np.uint64(_WIDE_PEER if wide else 1)
    queue_pair = source % np.uint64(_QUEUE_PAIRS) * np.uint64(_WIDE_QUEUE_PAIR if wide else 1)
    what = np.uint64(op("kProxyWrite")) | peer << np.uint64(16) | queue_pair << np.uint64(32)
    sources = source | (salt << np.uint64(32) if wide else np.uint64(0))
    wanted = np.stack([salt + 1, sources, salt * 3 + 2, salt * 5 + 3, salt * 7 + 4], axis=1).astype(np.uint64)
    wrong = np.any(taken[:, :5] != wanted, axis=1) | ((taken[:, 5] ^ what) << np.uint64(16) != 0)
    if np.any(wrong):
        return f"{int(wrong.sum())} of {total} commands reached the proxy with words that are not theirs"
    if np.any(taken[:, _WORDS] != salt ^ np.uint64(1)):
        return "the proxy took a command before the data was there that its thread had written"
    return None


@drawn
def _pushes(rng: Rng, learners: int, *jobs: tuple[int, int, int], seeds: int = 2) -> Iterator[Case]:
    """(threads, slots, each) on several schedules; the proxy is quick, slow, or returns credits late."""
    for number, (threads, slots, each) in enumerate(jobs):
        for seed in range(seeds):
            batch = 1 if seed == 0 else slots  # `slots`: the proxy takes all of them before it returns a credit
            job = _Job(slots, each, 0, learners, 30 * (number % 2), batch, first=_OLD if number % 2 else 0)
            yield _case(rng, job, threads)


@drawn
def _warps(rng: Rng, *jobs: tuple[int, int, int, int], seeds: int = 2) -> Iterator[Case]:
    """(warps, lanes, slots, each): warps push at the same time."""
    for warps, lanes, slots, each in jobs:
        for seed in range(seeds):
            job = _Job(slots, each, lanes, _PUSH_WARP, 30 * seed, first=_OLD if seed else 0)
            yield _case(rng, job, warps * _LANES)


@drawn
def _waits(rng: Rng, learners: int, lag: int, *, seeds: int = 2) -> Iterator[Case]:
    """The proxy has taken ``lag`` commands more than are done."""
    for seed in range(seeds):
        yield _case(rng, _Job(64, 1, learners=learners, delay=20 * seed, first=_OLD * seed), 12, lag)


@drawn
def _given_up(rng: Rng, job: Job, threads: int = 1) -> Iterator[Case]:
    """The proxy leaves before all is done: waits for it give up, touch nothing, and name the command's peer."""
    case = _case(rng, job, threads)
    before = given(case, "slots")
    in_turn = job.lanes or threads
    last = range((job.each - 1) * in_turn, job.each * in_turn)  # the commands of the last turn, which finds no room
    peers = {index % _PEERS for index in last}

    def judge(out: Outputs) -> str | None:
        noted = out["noted"][0][2 * job.each * in_turn :]
        fault = fault_of(noted[1:])
        if noted[0] == 0:
            return "a proxy left, and nothing that waited for it said so"
        if fault.code != FAULT_NONE and not fault.is_about("proxy"):
            return "the wait for a proxy that left was not reported as one of kPhaseProxy"
        if fault.code != FAULT_NONE and not job.learners & (_WAIT | _FLUSH) and fault.peer not in peers:
            who = f"names peer {fault.peer}; the command that waited was for another one"
            return f"the report of a wait for room {who}"
        if problem := _head_wrong(out, job, job.each * in_turn):
            return f"{problem}: a number that was reserved stays so, also where the wait for room gave up"
        told = out["slots"][0][:, -1].astype(np.int64) - job.first
        if np.any(told > max(job.num_slots, job.served)):
            return "a slot was filled that was not free, after the wait for it had given up"
        return None if np.any(out["slots"][0] != before) else "no command was pushed"

    yield replace(case, judge=judge, endless=True)


_GONE = "False after the limit: then nothing more may happen."
_FREE = "Command n takes the slot of command n - num_slots, once that one and all before it have been taken."
_LAST = "All words, then `number`, with a release that a CPU sees: it says number + 1."
_OWN = "One addition reserves a number for one thread; tell it, wait for its slot, fill it."
_WARP = (
    "One addition for all lanes; room for the last of them; a __syncwarp before any lane fills its slot. With count 0 "
    "nothing is reserved, and nothing waited for."
)
_DONE = "Command 0 is done when completed is 1. What is taken may not be done yet."
_ROOM_JOBS = ((1, 4, 9), (1, 2, 5), (6, 4, 3), (12, 8, 4), (40, 512, 13))
_WARP_JOBS = (1, 32, 32, 3), (2, 32, 64, 2), (2, 7, 32, 4), (1, 1, 2, 5)


def _checked(learners: int, *jobs: tuple[int, int, int]) -> Cases:
    return under_checker(_pushes(learners, *jobs, seeds=1))


def _done(learners: int, lag: int) -> Cases:
    return all_of(_waits(learners, 3), under_checker(_waits(learners, lag, seeds=1)))


BEHAVIOURS = (
    Behaviour(1, "no slot is filled before it is free, and each wait for one ends", _pushes(_ROOM, *_ROOM_JOBS), _FREE),
    Behaviour(1, "a proxy that has gone", _given_up(_Job(2, 3, 0, _ROOM, served=0)), _GONE),
    Behaviour(1, "what the credit allows is ordered behind it", _checked(_ROOM, (4, 2, 3)), _FREE),
    Behaviour(2, "every command reaches the proxy whole", _pushes(_FILL, *_ROOM_JOBS), _LAST),
    Behaviour(2, "the number publishes the command and its data", _checked(_FILL, (4, 4, 3)), _LAST),
    Behaviour(3, "many threads push, and lose nothing", _pushes(_PUSH, *_ROOM_JOBS, (40, 16, 2)), _OWN),
    Behaviour(3, "a proxy that has gone", _given_up(_Job(2, 3, 0, _PUSH, served=0)), _GONE),
    Behaviour(3, "pushes race with nobody", _checked(_PUSH, (5, 4, 3)), _OWN),
    Behaviour(4, "a warp's commands follow each other", _warps(*_WARP_JOBS), _WARP),
    Behaviour(4, "a proxy that has gone", _given_up(_Job(8, 2, 5, _PUSH_WARP, served=0), _LANES), _GONE),
    Behaviour(
        4, "no lane fills a slot too early", under_checker(_warps((2, 32, 32, 2), (1, 5, 32, 8), seeds=1), 3), _WARP
    ),
    Behaviour(5, "a wait ends when its command is done", _done(_WAIT, 0), _DONE),
    Behaviour(5, "a flush waits for all that was pushed", _done(_FLUSH, 2), _DONE),
    Behaviour(
        5,
        "a proxy that has gone",
        all_of(*(_given_up(_Job(4, 2, learners=part, served=1)) for part in (_WAIT, _FLUSH))),
        _GONE,
    ),
)

REHEARSED = 99  # cases of each, in the public checks

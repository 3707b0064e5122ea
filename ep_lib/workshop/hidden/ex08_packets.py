"""Hidden tests of exercise 08_packets: ping-pong over many rounds, waits that time out, all under the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ep_lib.emulator.accesses import LOADS, UPDATES
from ep_lib.memory.device_state import FAULT_TIMEOUT, PHASE_NAMES
from ep_lib.workshop.hidden import (
    Behaviour,
    Case,
    Cases,
    Rng,
    all_of,
    job_numbers,
    left_over,
    narrow,
    not_sent_as_packets,
    one,
    refs,
    rehearsed,
    some_zeros,
    under_checker,
)
from ep_lib.workshop.scenario import Array, Launch, Outputs, Scenario

_SOURCE = str(Path(__file__).with_suffix(".cu"))
KERNELS = ((_SOURCE, "examine"),)

# Mirrors constants of the .cu file.
_SEND, _WAIT, _SEND_WARP, _WAIT_WARP = (1 << bit for bit in range(4))
_GUARD, _LANES, _ANSWERS = 1, 32, 8
_OLD_TAG = 1 << 40  # in all packets before the first round: larger than every tag that is waited for
_STRAY_TAG = 1 << 41  # comes in place of a missing one


@dataclass(frozen=True)
class _Job:
    """The numbers of one run; mirrors ``Job`` of the .cu file, where each is explained."""

    words: int = 8
    rounds: int = 6
    tag: int = 1
    step: int = 1
    learners: int = 0
    missing: int = 0
    gap: int = 0
    delay: int = 0


def _ping_pong(task: int, rng: Rng, seed: int, job: _Job, ranks: int = 2) -> Case:
    """Judges what arrived in each round, the answers, the fault of a timeout, and memory around the packets."""
    everybody = range(ranks)
    sources = [some_zeros(rng, rng.integers(1, 1 << 63, (job.rounds, job.words), dtype=np.uint64)) for _ in everybody]
    before = rng.integers(0, 1 << 63, (2 * _GUARD + job.words, 2), dtype=np.uint64)
    before[:, 1] = _OLD_TAG
    complete = job.rounds - (job.missing > 0)

    def judge(out: Outputs) -> str | None:
        if problem := _not_packets(out, job):
            return problem
        for me in everybody:
            noted = out["noted"][me].astype(np.int64)
            wrong = out["found"][me][:complete] != sources[me ^ 1][:complete]
            if np.any(wrong):
                return f"{int(wrong.sum())} of {wrong.size} words are wrong, the first in round {_first_row(wrong)}"
            answers = noted[:_LANES]
            if np.any(answers != complete):
                lane = int(np.flatnonzero(answers != complete)[0])
                said = f"{int(answers[lane])} of {job.rounds} times that the packets are there"
                return f"lane {lane} of rank {me} was told {said}; {complete} is right"
            if job.missing and me % 2 and (problem := _fault_wrong(noted[_LANES:], me, job)):
                return problem
            if problem := _packets_wrong(out["packets"][me], before, job):
                return problem
        return None

    return Case(_scenario(task, rng, seed, job, sources, before), judge)


def _not_packets(out: Outputs, job: _Job) -> str | None:
    for owner, kinds in enumerate(out.accesses.get("packets", ())):
        if job.learners & (_SEND | _SEND_WARP):
            words = job.words * job.rounds - (job.missing if owner % 2 else 0)
            if problem := not_sent_as_packets(kinds, words):
                return problem
        loads, updates = (int(narrow(kinds)[what]) for what in (LOADS, UPDATES))
        if loads + updates and job.learners & (_WAIT | _WAIT_WARP):
            how = f"({loads} loads and {updates} atomics of 8 bytes or less)"
            return f"the packets' words were loaded one by one {how}: the data may be older than the tag"
    return None


def _first_row(wrong: Array) -> int:
    return int(np.flatnonzero(wrong.any(axis=1))[0])


def _fault_wrong(record: Array, me: int, job: _Job) -> str | None:
    code, peer, phase, slot, seen, expected = (int(value) for value in record[:6])
    last = job.tag + (job.rounds - 1) * job.step
    if code != FAULT_TIMEOUT:
        return "a packet never came, and after the limit no fault was recorded"
    if (peer, phase, slot) != (me ^ 1, PHASE_NAMES.index("signal"), job.rounds - 1):
        return "the recorded fault is not about the `info` that was passed"
    if expected != last:
        return f"the recorded fault expected tag {expected}, but the wait was for {last}"
    if seen != _STRAY_TAG:
        return f"the recorded fault saw tag {seen}, but {_STRAY_TAG} was in the packet when the wait gave up"
    return None


def _packets_wrong(got: Array, before: Array, job: _Job) -> str | None:
    if np.any(got[:_GUARD] != before[:_GUARD]) or np.any(got[-_GUARD:] != before[-_GUARD:]):
        return "a packet before or behind those of the message changed"
    return None


def _scenario(task: int, rng: Rng, seed: int, job: _Job, sources: list[Array], before: Array) -> Scenario:
    everybody = range(len(sources))
    names = ("packets", "source", "target", "found", "noted", "seen", "numbers")
    launch = (Launch("examine", 1, 2 * _LANES, (task, *refs(*names))),)
    return Scenario(
        source=_SOURCE,
        ranks=len(sources),
        seed=seed,
        launches=(launch,) * len(sources),
        called_by="warp",
        outputs=("packets", "found", "noted"),
        watched=("packets",),
        symmetric={"packets": [before for _ in everybody]},
        local={
            "source": sources,
            "target": [left_over(rng, source[0]) for source in sources],
            "found": [left_over(rng, source) for source in sources],
            "noted": [np.zeros(_LANES + _ANSWERS, np.uint64) for _ in everybody],
            "seen": [np.zeros(1, np.uint8) for _ in everybody],
            "numbers": [job_numbers(job) for _ in everybody],
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
def _rounds(task: int, learners: int, *words: int, seeds: int = 2) -> Cases:
    """Several rounds of each number of words, with tags that grow by one, by more, or in their upper half only, on
    several schedules."""

    def cases(rng: Rng) -> Iterator[Case]:
        for number, count in enumerate(words):
            for seed in range(seeds):
                step = 1 << 32 if seed % 2 else 1 + 6 * (number % 2)
                job = _Job(count, tag=1 + 5 * seed, step=step, learners=learners, delay=20 * (seed % 2))
                yield _ping_pong(task, rng, 100 * task + 10 * number + seed, job, 2 if number % 2 else 4)

    return cases


def _many(task: int, learners: int) -> Cases:
    """More words than 10 bits count."""
    return one(lambda rng: _ping_pong(task, rng, 100 * task + 90, _Job(1100, 1, learners=learners)))


def _timeouts(task: int, learners: int, words: int, *missing: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, count in enumerate(missing):
            gap = words - count if seed else min(5, words - count)  # the first ones have packets behind them in a lane
            job = _Job(words, 1 + seed, tag=3 + (seed << 32), learners=learners, missing=count, gap=gap)
            yield _ping_pong(task, rng, 200 + seed, job)

    return cases


_STORE = "One 16-byte store, st_relaxed_sys_u64x2, into the peer's copy of the packet: data first, tag second."
_LOAD = "One 16-byte load per poll (ld_relaxed_sys_u64x2), until the tag is this one; poll_until has the limit."
_STRIDE = "Lane l takes words l, l + 32, ...; packet i is word i, and all of them have the same tag."
_VOTE = "All lanes stay until the vote and return the same; a __syncwarp makes `target` visible to every lane."

BEHAVIOURS = (
    Behaviour(1, "every round's words arrive", _rounds(1, _SEND, 1, 8, 40), _STORE),
    Behaviour(
        1,
        "it is right in every schedule",
        under_checker(_rounds(1, _SEND, 8, seeds=1), 4),
        _STORE,
    ),
    Behaviour(2, "every round's words, never those of another", _rounds(2, _WAIT, 1, 8, 40), _LOAD),
    Behaviour(2, "a packet that never comes", _timeouts(2, _WAIT, 8, 8, 1), _LOAD),
    Behaviour(
        2,
        "it is right in every schedule",
        under_checker(_rounds(2, _WAIT, 8, seeds=1), 4),
        _LOAD,
    ),
    Behaviour(3, "any number of words", all_of(_rounds(3, _SEND_WARP, 1, 33, 70), _many(3, _SEND_WARP)), _STRIDE),
    Behaviour(
        3,
        "each word once, in one store",
        under_checker(_rounds(3, _SEND_WARP, 33, seeds=1), 2),
        _STRIDE,
    ),
    Behaviour(4, "any number of words", all_of(_rounds(4, _WAIT_WARP, 1, 33, 70), _many(4, _WAIT_WARP)), _VOTE),
    Behaviour(4, "some packets never come", _timeouts(4, _WAIT_WARP, 40, 1, 9), _VOTE),
    Behaviour(
        4,
        "all of the words may be read",
        under_checker(_rounds(4, _WAIT_WARP, 40, seeds=1), 4),
        _VOTE,
    ),
)

PUBLIC = (
    Behaviour(1, "eight words, six rounds", one(lambda rng: _ping_pong(1, rng, 1, _Job(learners=_SEND))), _STORE),
    Behaviour(2, "eight words, six rounds", one(lambda rng: _ping_pong(2, rng, 1, _Job(learners=_WAIT))), _LOAD),
    Behaviour(2, "a packet that never comes", _timeouts(2, _WAIT, 8, 1), _LOAD),
    Behaviour(3, "40 words", one(lambda rng: _ping_pong(3, rng, 1, _Job(40, learners=_SEND_WARP))), _STRIDE),
    Behaviour(4, "40 words", under_checker(_rounds(4, _WAIT_WARP, 40, seeds=1), 2), _VOTE),
    *rehearsed(BEHAVIOURS),
)

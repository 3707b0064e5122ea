"""Hidden tests of exercise 08_packets: ping-pong over many rounds, waits that time out, all under the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.emulator.accesses import LOADS, UPDATES
from ep_lib.jit.device_state import FAULT_TIMEOUT
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, drawn, one, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_words
from ep_lib.workshop.hidden.judging import Fault, fault_of, narrow, not_sent_as_packets

# Mirrors constants of the .cu file.
_SEND, _WAIT, _SEND_WARP, _WAIT_WARP = (1 << bit for bit in range(4))
_LANES, _FAULT = 32, 6
_OLD_TAG = 1 << 40  # in all packets before the first round: larger than every awaited tag
_STRAY_TAG = 1 << 41  # comes in place of a missing one

_Job = job_of(__file__)


def _ping_pong(rng: Rng, job: Job, ranks: int = 2) -> Case:
    """Judges what arrived in each round, the answers, and the fault of a timeout."""
    everybody = range(ranks)
    sources = [random_words(rng, (job.rounds, job.words)) for _ in everybody]
    before = rng.integers(0, 1 << 63, (job.words, 2), dtype=np.uint64)
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
            if job.missing and me % 2 and (problem := _fault_wrong(fault_of(noted[_LANES:]), me, job)):
                return problem
        return None

    return Case(_scenario(job, sources, before), judge)


def _not_packets(out: Outputs, job: Job) -> str | None:
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


def _fault_wrong(fault: Fault, me: int, job: Job) -> str | None:
    last = job.tag + (job.rounds - 1) * job.step
    if fault.code != FAULT_TIMEOUT:
        return "a packet never came, and after the limit no fault was recorded"
    if not fault.is_about("signal", me ^ 1, job.rounds - 1):
        return "the recorded fault is not about the `info` that was passed"
    if fault.expected != last:
        return f"the recorded fault expected tag {fault.expected}, but the wait was for {last}"
    if fault.seen != _STRAY_TAG:
        return f"the recorded fault saw tag {fault.seen}, but {_STRAY_TAG} was in the packet when the wait gave up"
    return None


def _scenario(job: Job, sources: list[Array], before: Array) -> Scenario:
    return Scenario(
        ranks=len(sources),
        launches=Launch(1, 2 * _LANES),
        called_by="warp",
        outputs=("packets", "found", "noted"),
        watched=("packets",),
        symmetric={"packets": before},
        local={
            "source": sources,
            "target": Room(job.words, np.uint64),
            "found": Room((job.rounds, job.words), np.uint64),
            "noted": np.zeros(_LANES + _FAULT, np.uint64),
            "numbers": job_numbers(job),
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _rounds(rng: Rng, learners: int, *words: int, seeds: int = 2) -> Iterator[Case]:
    """Several rounds of each number of words, with tags that grow by one, by more, or in their upper half only, on
    several schedules."""
    for number, count in enumerate(words):
        for seed in range(seeds):
            step = 1 << 32 if seed % 2 else 1 + 6 * (number % 2)
            job = _Job(count, tag=1 + 5 * seed, step=step, learners=learners, delay=20 * (seed % 2))
            yield _ping_pong(rng, job, 2 if number % 2 else 4)


@drawn
def _timeouts(rng: Rng, learners: int, words: int, *missing: int) -> Iterator[Case]:
    for seed, count in enumerate(missing):
        gap = words - count if seed else min(5, words - count)  # with seed 0, lanes have further packets behind the gap
        yield _ping_pong(rng, _Job(words, 1 + seed, 3 + (seed << 32), learners=learners, missing=count, gap=gap))


_STORE = "One 16-byte store, st_relaxed_sys_u64x2, into the peer's copy of the packet: data first, tag second."
_LOAD = "One 16-byte load per poll (ld_relaxed_sys_u64x2), until the tag is this one; poll_until has the limit."
_STRIDE = "Lane l takes words l, l + 32, ...; packet i is word i, and all of them have the same tag."
_VOTE = "All lanes stay until the vote and return the same; a __syncwarp makes `target` visible to every lane."
_MANY = _Job(1100, 1)  # words, more than 10 bits count
_SENT, _TAKEN = (one(_ping_pong, replace(_MANY, learners=part)) for part in (_SEND_WARP, _WAIT_WARP))

BEHAVIOURS = (
    Behaviour(1, "every round's words arrive", _rounds(_SEND, 1, 8, 40), _STORE),
    Behaviour(1, "it is right in every schedule", under_checker(_rounds(_SEND, 8, seeds=1)), _STORE),
    Behaviour(2, "every round's words, never those of another", _rounds(_WAIT, 1, 8, 40), _LOAD),
    Behaviour(2, "a packet that never comes", _timeouts(_WAIT, 8, 8, 1), _LOAD),
    Behaviour(2, "it is right in every schedule", under_checker(_rounds(_WAIT, 8, seeds=1)), _LOAD),
    Behaviour(3, "any number of words", all_of(_rounds(_SEND_WARP, 1, 33, 70), _SENT), _STRIDE),
    Behaviour(3, "each word once, in one store", under_checker(_rounds(_SEND_WARP, 33, seeds=1), 2), _STRIDE),
    Behaviour(4, "any number of words", all_of(_rounds(_WAIT_WARP, 1, 33, 70), _TAKEN), _VOTE),
    Behaviour(4, "some packets never come", _timeouts(_WAIT_WARP, 40, 1, 9), _VOTE),
    Behaviour(4, "all of the words may be read", under_checker(_rounds(_WAIT_WARP, 40, seeds=1)), _VOTE),
)

"""Hidden tests of exercise 03_batches: the kernels of the ladder, on every fabric and under the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.emulator.accesses import COUNT, NIC, UPDATES
from ep_lib.emulator.fabric import Fabric
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, drawn, on_fabrics, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_bytes
from ep_lib.workshop.hidden.judging import each_rank
from ep_lib.workshop.hidden.networks import BOTH, NODES, PAIR, RC, RING, SRD, Route, senders

_P2P = Fabric()
_SHALLOW = Fabric("srd", queue_depth=2)
_BLOCK = 64  # threads; the kernels use the first warp

_Job = job_of(__file__)


# ---- tasks 1, 2 and 4 -----------------------------------------------------------------------------------------------
def _send_case(rng: Rng, task: int, job: Job, route: Route, quiets: int | None) -> Case:
    """Every rank sends ``messages`` per channel; judges each chunk when its counter grew, memory at the end, and that a
    warp waited at most ``quiets`` times (None: no limit)."""
    job = replace(job, before=int(rng.integers(0, 1 << 31)))
    ranks, size = len(route), job.channels * job.messages * job.bytes
    inboxes, data = ([random_bytes(rng, size + 16) for _ in range(ranks)] for _ in range(2))
    counters = [np.full(job.channels + 1, job.before, np.uint32) for _ in range(ranks)]
    want_inbox, want_counters = [a.copy() for a in inboxes], [c.copy() for c in counters]
    for me, peer in enumerate(route):
        if peer >= 0:
            want_inbox[peer][:size] = data[me][:size]
            want_counters[peer][: job.channels] += job.messages

    def judge(out: Outputs, me: int) -> str | None:
        if out.accesses and me in route and (problem := _additions_wrong(task, out, me, job)):
            return problem
        if problem := _counters_wrong(out["counters"][me], want_counters[me], counters[me]):
            return problem
        wrong = out["inbox"][me] != want_inbox[me]
        if np.any(wrong):
            at = int(np.flatnonzero(wrong)[0]) // job.bytes
            return f"{int(wrong.sum())} bytes in an inbox are wrong in the end; the first are of message {at}"
        late = out["seen"][me][:size] != want_inbox[me][:size]
        if me in route and np.any(late):
            at = int(np.flatnonzero(late)[0]) // job.bytes
            return f"when the counter grew, message {at} had not arrived, nor had {int(late.sum())} bytes in all"
        if quiets is not None and int(out["noted"][me].max()) > quiets:
            most, sent = int(out["noted"][me].max()), job.messages
            return f"{most} quiets for {sent} messages, {job.chunk} at a time: {quiets} would do"
        return None

    return Case(_scenario(route, job, inboxes, data, counters), each_rank(ranks, judge))


def _additions_wrong(task: int, out: Outputs, me: int, job: Job) -> str | None:
    """A problem if a message, batch or chunk had no addition of its own: rank ``me``'s counter grew less often."""
    each = "message" if task == 1 else "batch" if task == 2 else "chunk"
    asked = job.channels * -(-job.messages // (1 if task == 1 else job.chunk))
    updates = out.accesses["counters"][me][:, UPDATES, ..., COUNT].sum(axis=(0, 2))
    got = int(updates[NIC])
    if got >= asked or (not got and updates.any()):  # over P2P, where repeated updates of one line are not recorded
        return None
    sent = job.channels * job.messages
    return f"{got} additions to the counter for {sent} messages: one for each {each} is right, {asked}"


def _counters_wrong(got: Array, want: Array, before: Array) -> str | None:
    if np.array_equal(got, want):
        return None
    at = int(np.flatnonzero(got != want)[0])
    grew, asked = (int(np.uint32(x[at])) - int(before[at]) for x in (got, want))
    lanes = ": every lane has added, and one is enough" if asked and grew == 32 * asked else ""
    return f"counter {at} grew by {grew} where it should grow by {asked}{lanes}"


# ---- task 3 ---------------------------------------------------------------------------------------------------------
def _count_case(rng: Rng, messages: int, ranks: int, target: int) -> Case:
    """Every rank counts from two blocks; judges that each added to its own counter, that no addition is lost, and that
    all additions have been made when the rank signals that its kernel is done."""
    job = _Job(messages=messages, channels=2)
    counters = [np.append(rng.integers(0, 1 << 30, ranks), np.zeros(ranks)).astype(np.uint32) for _ in range(ranks)]
    nothing = [np.zeros(16, np.uint8)] * ranks

    def judge(out: Outputs) -> str | None:
        for me in range(ranks):
            grew = out["counters"][me][:ranks].astype(np.int64) - counters[me][:ranks]
            asked = 2 * job.messages if me == target else 0
            if np.all(grew == asked):
                continue
            rank, one = int(np.flatnonzero(grew != asked)[0]), int(grew[grew != asked][0])
            return f"the counter of rank {rank} at rank {me} grew by {one} where it should grow by {asked}"
        if np.any(out["noted"][target][:ranks] != out["counters"][target][:ranks]):
            return "a kernel was done, and some of its additions were not made yet"
        return None

    return Case(_scenario((target,) * ranks, job, nothing, nothing, counters), judge)


def _scenario(route: Route, job: Job, inboxes: list[Array], data: list[Array], counters: list[Array]) -> Scenario:
    sender = senders(route)
    return Scenario(
        ranks=len(route),
        launches=Launch(2 * job.channels, _BLOCK),
        outputs=("inbox", "counters", "seen", "noted"),
        symmetric={
            "inbox": inboxes,
            "outbox": data,
            "staging": Room(max(job.bytes, 1), np.uint8),
            "counters": counters,
        },
        local={
            "source": data,
            "seen": [Room(inbox.size, np.uint8) for inbox in inboxes],
            "noted": np.zeros(max(job.channels, len(route)), np.uint64),
            "numbers": [job_numbers(job, *ways) for ways in zip(route, sender, strict=True)],
        },
        shim=True,
        watched=("counters",),
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _staged(rng: Rng, *shapes: tuple[int, int]) -> Iterator[Case]:
    for number, (size, messages) in enumerate(shapes):
        job = _Job(bytes=size, messages=messages)
        yield _send_case(rng, 1, job, RING if number % 2 else PAIR, messages + 1)


@drawn
def _batched(rng: Rng, *shapes: tuple[int, int], quiets: int | None = None) -> Iterator[Case]:
    for number, (size, messages) in enumerate(shapes):
        job = _Job(bytes=size, messages=messages, chunk=messages)
        yield _send_case(rng, 2, job, RING if number % 2 else PAIR, quiets)


@drawn
def _channels(rng: Rng, *shapes: tuple[int, int, int, int], count_quiets: bool = False) -> Iterator[Case]:
    """Each of ``shapes`` is (bytes, messages, chunk, channels)."""
    for number, (size, messages, chunk, channels) in enumerate(shapes):
        job = _Job(bytes=size, messages=messages, chunk=chunk, channels=channels)
        quiets = -(-messages // chunk) + 1 if count_quiets else None
        yield _send_case(rng, 4, job, RING if number % 2 else BOTH, quiets)


@drawn
def _counts(rng: Rng, ranks: int) -> Iterator[Case]:
    for number in range(6):
        yield _count_case(rng, 3 + number % 3, ranks, number % ranks)


_EVERYWHERE = (_P2P, RC, SRD, NODES)
_TWICE = (
    "One quiet between a put and its counter: the data is there, and the staging buffer is free. Two barriers: one "
    "before the put, one behind the quiet."
)
_ONE_QUIET = "A quiet waits for a round trip: one for the batch keeps the network busy with all of it."
_AFTER_A_QUIET = "What was posted is done after a quiet only."
_ORDER = "Of the shim's five calls, on EFA only a quiet keeps the counter behind the data."
_QUEUE_PAIR = "InfiniBand's quiet waits for one queue pair: the one that the puts went over."
_OWN_COUNTER = "One kind of writer for each counter: the one that is this rank's own, at the target."

_SHAPES = (64, 7, 3, 2), (33, 9, 4, 3), (1, 2, 5, 1), (0, 3, 2, 1), (3, 70, 33, 2), (3, 2, 2, 9), (66_001, 2, 1, 1)
_STAGED_CLEAN = under_checker(_staged((320, 4), (48, 3)))
_STAGED = _staged((1, 1), (33, 7), (200, 5), (1, 40), (0, 3), (66_001, 2))
_BATCH_CLEAN = under_checker(_batched((320, 4)))
_BATCHED_CLEAN = under_checker(_batched((320, 4), (48, 3)))
_TAILS = under_checker(_channels((320, 4, 2, 2), (48, 5, 3, 1)))
_ON_CHANNELS = under_checker(_channels((320, 4, 2, 2)))
_CHUNKS = on_fabrics(_channels(*_SHAPES, count_quiets=True), *_EVERYWHERE)
_SHALLOW_CHUNKS = on_fabrics(_channels((64, 6, 3, 2)), _SHALLOW)
_BATCHED = _batched((48, 0), (200, 6), (1, 260), (33, 12), (0, 3), (66_001, 2), quiets=2)

_IN_ORDER = "every message is staged before its put, no put's source is overwritten, and the counter comes last"
_DONE = "every rank adds to a counter of its own, and is not done before that"

BEHAVIOURS = (
    Behaviour(1, _IN_ORDER, on_fabrics(_STAGED_CLEAN, RC, SRD, _P2P), _TWICE),
    Behaviour(1, "sizes and numbers of messages", on_fabrics(_STAGED, *_EVERYWHERE), _TWICE),
    Behaviour(2, "the batch is there when the counter grows", on_fabrics(_BATCH_CLEAN, SRD), _ORDER),
    Behaviour(2, "the quiet waits for the puts", on_fabrics(_BATCHED_CLEAN, RC, _P2P), _QUEUE_PAIR),
    Behaviour(2, "any size of batch, with one quiet", on_fabrics(_BATCHED, *_EVERYWHERE), _ONE_QUIET),
    Behaviour(3, _DONE, on_fabrics(_counts(4), RC, SRD, NODES, _P2P), f"{_OWN_COUNTER} {_AFTER_A_QUIET}"),
    Behaviour(3, "no addition is lost", on_fabrics(under_checker(_counts(4)), SRD, NODES), _OWN_COUNTER),
    Behaviour(4, "the messages are there when their tail grows", on_fabrics(_TAILS, SRD), _ORDER),
    Behaviour(4, "it stays right on InfiniBand and over P2P", on_fabrics(_ON_CHANNELS, RC, _P2P), _QUEUE_PAIR),
    Behaviour(4, "any number of messages, with one quiet per chunk", all_of(_CHUNKS, _SHALLOW_CHUNKS)),
)

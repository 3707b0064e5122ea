"""Hidden tests of exercise 05_ring: each function against an end that the grader plays, then both ends together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.fabric import Fabric
from ep_lib.jit.device_state import FAULT_NONE
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, drawn, on_fabrics, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_bytes
from ep_lib.workshop.hidden.judging import credits_wrong, each_rank, fault_of
from ep_lib.workshop.hidden.networks import BOTH, PAIR, RC, RING, SRD, Route, senders

# Mirrors constants of the .cu file.
_ROOM, _WAIT_FOR_ROOM, _POST, _WAIT, _CREDIT, _SEND, _RECEIVE, _STREAM = (1 << bit for bit in range(8))
_NOTES = 11
_FAULT = slice(5, 11)  # of the notes
_RECEIVED = 0xA5  # every byte of the slots, before
_OLD = (1 << 32) - 3  # the first message of a ring that has carried many

_SHALLOW = Fabric("srd", ranks_per_node=2, p2p=False, queue_depth=1)

_Job = job_of(__file__)


# ---- task 1 alone ---------------------------------------------------------------------------------------------------
def _room_case(_: Rng, slots: int, credits: int, first: int = 0) -> Case:
    job = _Job(num_slots=slots, messages=credits + 2 * slots + 2 - first, credits=credits, first=first)

    def judge(out: Outputs) -> str | None:
        answers = out["noted"][0].reshape(-1, 2)
        for message, (needed, room) in enumerate(answers, first):
            if problem := credits_wrong(slots, "message", message, int(needed)):
                return problem
            if bool(room) != (credits >= int(needed)):
                what = "room" if room else "no room"
                return f"with {slots} slots and {credits} credits, there is {what} for message {message}"
        return None

    return Case(_scenario((-1,), job, [np.zeros(1, np.uint8)], notes=2 * job.messages), judge)


# ---- messages -------------------------------------------------------------------------------------------------------
def _message_case(rng: Rng, job: Job, route: Route = PAIR) -> Case:
    """``messages`` messages along ``route``; judges each of them, the counters, and how far the sender ran ahead."""
    sources = [random_bytes(rng, job.messages * job.slot_bytes) for _ in route]
    used = np.zeros((job.messages, job.slot_bytes), bool)
    for message in range(job.messages):
        used[message, : job.slot_bytes - message % 3 * job.short_by] = True

    def judge(out: Outputs, me: int) -> str | None:
        noted = out["noted"][me]
        if np.any(noted[:2]):
            return "a function returned false although nothing was late"
        if int(noted[4]):
            return "what followed on the ring's queue pair came before what your function had posted"
        if int(noted[2]) > job.num_slots:
            return f"{int(noted[2])} messages were under way in a ring of {job.num_slots} slots"
        sent = []
        if me in route:
            source = sources[route.index(me)].reshape(used.shape)
            sent = [source[m, used[m]] for m in range(job.messages)]
            wrong = out["seen"][me][job.odd :].reshape(used.shape) != np.where(used, source, 0)
            if np.any(wrong):
                message = int(np.flatnonzero(wrong.any(axis=1))[0])
                return f"{int(wrong.sum())} received bytes are wrong, of message {message} and later ones"
        return _counters_wrong(out, me, route, job, job.messages) or _slots_wrong(out, me, job, sent)

    return Case(_scenario(route, job, sources), each_rank(len(route), judge))


def _stream_case(rng: Rng, job: Job, route: Route = PAIR) -> Case:
    """Two streams of ``bytes`` bytes together; judges the data, and that no message was empty."""
    first = job.bytes // 3
    sources = [random_bytes(rng, max(1, job.bytes)) for _ in route]
    cuts = [*range(0, first, job.slot_bytes), *range(first, job.bytes, job.slot_bytes), job.bytes]
    messages = len(cuts) - 1

    def judge(out: Outputs, me: int) -> str | None:
        if np.any(out["noted"][me][:2]):
            return "a function returned false although nothing was late"
        if me not in route:
            return None
        data = sources[route.index(me)][: job.bytes]
        wrong = np.flatnonzero(out["seen"][me][: job.bytes] != data)
        if wrong.size:
            where = f"the first at {int(wrong[0])}; slots have {job.slot_bytes} bytes"
            return f"{wrong.size} bytes of {job.bytes} are wrong, {where}"
        if (got := int(out["noted"][me][3])) != job.first + messages:
            number = f"{job.first} and {messages} messages later" if job.first else f"after {messages} messages"
            return f"{number}, the number of the next one is {got}: *message did not count them"
        sent = [data[begin:end] for begin, end in pairwise(cuts)]
        return _counters_wrong(out, me, route, job, messages) or _slots_wrong(out, me, job, sent)

    return Case(_scenario(route, job, sources), each_rank(len(route), judge))


def _counters_wrong(out: Outputs, me: int, route: Route, job: Job, messages: int) -> str | None:
    credits, *arrived = out["counters"][me][:-1].astype(np.int64).tolist()
    _, *want = _counters(job, messages, me in route)[:-1].astype(np.int64).tolist()
    if credits != (right := job.first + (messages if route[me] >= 0 else 0)):
        return f"after {messages} messages, credits is {credits} on a rank where it should be {right}"
    slot = next((slot for slot in range(job.num_slots) if arrived[slot] != want[slot]), None)
    return slot if slot is None else f"the signal of slot {slot} is {arrived[slot]} in the end, not {want[slot]}"


def _slots_wrong(out: Outputs, me: int, job: Job, sent: Sequence[Array]) -> str | None:
    """Whether a slot holds anything but the bytes of the messages that went through it, one after the other."""
    want = np.full((job.num_slots, job.slot_bytes), _RECEIVED, np.uint8)
    for number, message in enumerate(sent, job.first):
        want[number % job.num_slots, : message.size] = message
    got = out["slots"][me].reshape(want.shape)
    wrong = np.flatnonzero((got != want).any(axis=1))
    if not wrong.size:
        return None
    number = int((got != want).sum())
    return f"behind the last byte of a message {number} more bytes came, the first in slot {wrong[0]}"


def _counters(job: Job, messages: int, receives: bool = True) -> NDArray[np.uint64]:
    """The counters after ``messages`` messages: each slot's signal is that of its last message."""
    counters = np.zeros(2 + job.num_slots, np.uint64)
    counters[0] = job.first
    for slot in range(job.num_slots):
        end = job.first + (messages if receives else 0)
        counters[1 + slot] = max(0, end - (end - 1 - slot) % job.num_slots)
    return counters


@drawn
def _alone(rng: Rng, learners: int, *, sends: bool) -> Iterator[Case]:
    """One end of a ring without the other: the third message finds no room, or the first does not come. In a stream,
    later events come all the same: the second message before the first, and credits after the wait for them failed."""
    is_stream = learners == _STREAM
    job = _Job(num_slots=2, messages=3, slot_bytes=64, bytes=90 * 64, learners=learners)
    job = replace(job, late=30 if is_stream and sends else 0, first=3 if learners == _WAIT else 0)
    sources = [random_bytes(rng, job.bytes) for _ in range(2)]
    scenario = _scenario((1, -1) if sends else (-1, -1), job, sources, [-1, -1] if sends else [-1, 0])
    first, second = _counters(job, 0), _counters(job, 2 if sends else 0)
    if is_stream and not sends:
        second[2] = 2
        scenario = replace(scenario, symmetric={**scenario.symmetric, "counters": [first, second]})
    first[0] = job.late or job.first

    def judge(out: Outputs) -> str | None:
        who = 0 if sends else 1
        if int(out["noted"][who][0 if sends else 1]) != 1:
            return "the other end never did what this one waits for, and no function returned false"
        fault = fault_of(out["noted"][who][_FAULT])
        is_told = learners == _WAIT and fault.code != FAULT_NONE
        if is_told and not fault.is_about("dispatch", 0):
            return "the report of a wait that failed is not about the `phase` that was passed and the ring's peer"
        if is_told and fault.slot != job.first % job.num_slots:
            return f"a wait for message {job.first} failed, and its report names slot {fault.slot} of {job.num_slots}"
        if np.any(out["counters"][1][:-1] != second[:-1]) or np.any(out["counters"][0][:-1] != first[:-1]):
            return "a wait had failed, and a counter grew all the same"
        slots = out["staging"][0][: 2 * job.slot_bytes]
        if sends and np.any(slots != sources[0][: 2 * job.slot_bytes]):
            return "a wait had failed, and the slot was filled all the same"
        return "a wait had failed, and data was read all the same" if np.any(out["seen"][1]) else None

    yield Case(replace(scenario, fabric=RC), judge, endless=True)


@drawn
def _on_pairs(rng: Rng, learners: int) -> Iterator[Case]:
    for seed in range(4):
        job = _Job(num_slots=3, messages=12, queue_pair=1 + seed % 3, learners=learners, marked=1)
        yield _message_case(rng, job)


def _marked(learners: int) -> Cases:
    """Cases on a queue pair other than the first, which keeps the learner's operation before a later mark."""
    return on_fabrics(_on_pairs(learners), RC)


def _scenario(
    route: Route, job: Job, sources: list[Array], sender: Sequence[int] = (), notes: int = _NOTES
) -> Scenario:
    size = job.num_slots * job.slot_bytes
    ways = zip(route, sender or senders(route), strict=True)
    return Scenario(
        ranks=len(route),
        launches=Launch(2 + job.marked, 32),
        called_by="warp",
        outputs=("staging", "slots", "counters", "seen", "noted"),
        symmetric={
            "staging": Room(size, np.uint8),
            "slots": np.full(size, _RECEIVED, np.uint8),
            "counters": _counters(job, 0),
        },
        local={
            "source": [np.append(np.zeros(job.odd, np.uint8), source) for source in sources],
            "seen": [np.zeros(job.odd + source.size, np.uint8) for source in sources],
            "noted": np.zeros(notes, np.uint64),
            "numbers": [job_numbers(job, *each) for each in ways],
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _sent(rng: Rng, learners: int, *slots: int, delay: int = 0) -> Iterator[Case]:
    for number, count in enumerate(slots):
        job = _Job(num_slots=count, slot_bytes=320, short_by=17, delay=delay, learners=learners)
        yield _message_case(rng, job, BOTH if number % 2 else PAIR)


def _checked(
    learners: int, *slots: int, fabrics: Sequence[Fabric] = (RC, SRD), delay: int = 0, seeds: int = 4
) -> Cases:
    return on_fabrics(under_checker(_sent(learners, *slots, delay=delay), seeds), *fabrics)


@drawn
def _rounds(rng: Rng, learners: int) -> Iterator[Case]:
    shapes = (1, 1), (1, 6), (3, 2), (4, 4), (4, 5), (2, 25), (5, 17), (3, 2), (260, 270)
    for seed, (slots, messages) in enumerate(shapes):
        job = _Job(num_slots=slots, messages=messages, slot_bytes=48, queue_pair=seed % 4, learners=learners)
        job = replace(job, first=_OLD if seed in (1, 2, 6) else 0, odd=seed % 3 % 2)
        job = replace(job, short_by=24 * (seed % 3 > 0))  # some have no bytes, as the first of the last ones has
        yield _message_case(rng, job, RING if seed % 2 else PAIR)


@drawn
def _streams(rng: Rng, *sizes: int) -> Iterator[Case]:
    for seed, size in enumerate(sizes):
        job = _Job(num_slots=1 + seed % 3, bytes=size, learners=_STREAM, first=_OLD if seed in (6, 8) else 0)
        yield _stream_case(rng, job, RING if seed % 2 else PAIR)
    if len(sizes) > 1:
        yield _stream_case(rng, _Job(slot_bytes=66_000, bytes=140_001, learners=_STREAM))


_FREE = "A slot is free when the message that had it, and all before it, have been read; an acquire makes it usable."
_SIGNAL = "The signal is the slot's own, comes with the data in one operation, and is the message's number plus 1."
_OWN_SIGNAL = "Every slot has a signal of its own; it shows the message's number plus 1."
_BARRIERS = "The lanes need two barriers: behind lane 0's wait, and before what lane 0 does next."
_PAIR = "Data and credits go over ring.queue_pair."
_FAILED = "False after the limit: then nothing more may happen."
_CUT = "Full messages, then one with what is left, if anything; *message counts all of them."

_ENDS = _WAIT | _CREDIT
_LENGTHS = _streams(0, 1, 64, 128, 191, 192, 193, 286, 1000)

_CREDITS = several(_room_case, (1, 0), (1, 3), (3, 0), (3, 4), (8, 20), (260, 20), (3, _OLD + 4, _OLD))

BEHAVIOURS = (
    Behaviour(1, "every message knows its credits", on_fabrics(_CREDITS, RC), _FREE),
    Behaviour(
        1, "a sender that asks for room never overwrites what is still needed", _checked(_ROOM, 1, 3, delay=40), _FREE
    ),
    Behaviour(
        1, "a sender that waits for room does not either", _checked(_WAIT_FOR_ROOM, 2, 1, fabrics=[SRD], seeds=2), _FREE
    ),
    Behaviour(2, "a signal is never seen before its message", _checked(_POST, 1, 3, fabrics=[SRD]), _SIGNAL),
    Behaviour(2, "any number of messages and slots", on_fabrics(_rounds(_POST), RC, SRD), _SIGNAL),
    Behaviour(3, "any number of messages and slots", on_fabrics(_rounds(_ENDS), RC, SRD), _OWN_SIGNAL),
    Behaviour(3, "a message may be read after the wait", _checked(_ENDS, 1, 3), _OWN_SIGNAL),
    Behaviour(2, "it is posted on the ring's queue pair", _marked(_POST), _PAIR),
    Behaviour(3, "the credit goes over the ring's queue pair", _marked(_ENDS), _PAIR),
    Behaviour(3, "a message that never comes", _alone(_WAIT, sends=False), _FAILED),
    Behaviour(4, "the sender fills what is free, and posts what is filled", _checked(_SEND, 1, 3, delay=40), _BARRIERS),
    Behaviour(4, "the receiver reads what is there, and gives back what was read", _checked(_RECEIVE, 1, 3), _BARRIERS),
    Behaviour(4, "room that never comes", _alone(_SEND, sends=True), _FAILED),
    Behaviour(4, "a message that never comes", _alone(_RECEIVE, sends=False), _FAILED),
    Behaviour(4, "both ends together", on_fabrics(_rounds(_SEND | _RECEIVE), RC, SRD, _SHALLOW), _BARRIERS),
    Behaviour(5, "streams of every length arrive", on_fabrics(_LENGTHS, SRD, RC), _CUT),
    Behaviour(5, "streams race with nobody", on_fabrics(under_checker(_streams(193), 2), RC), _CUT),
    Behaviour(5, "room that never comes", _alone(_STREAM, sends=True), _FAILED),
    Behaviour(5, "messages that never come", _alone(_STREAM, sends=False), _FAILED),
)

REHEARSED = 99  # cases of each, in the public checks

"""Hidden tests of exercise 05_pipeline: each piece against an end that the grader plays, then a block for both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ep_lib.emulator.fabric import Fabric
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import (
    Cases,
    all_of,
    drawn,
    given,
    of_kernels,
    on_fabrics,
    one,
    several,
    under_checker,
)
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_bytes
from ep_lib.workshop.hidden.judging import credits_wrong, each_rank
from ep_lib.workshop.hidden.networks import RC, SRD

# Mirrors constants of the .cu file.
_ASK, _SEND_CHUNK, _TAKE_CHUNK, _SENDER, _MERGED = (1 << bit for bit in range(5))
_AT_ONCE, _RECEIVE_FIRST, _SEND_FIRST = range(3)
_UNTOLD = -1  # the initial number of received rows
_HEADER_BYTES = 16
_SLOT_BYTES = _HEADER_BYTES + 2 * 48  # of the default _Job()

_SHALLOW = Fabric("srd", queue_pairs=1, queue_depth=1)

Counts = Sequence[Sequence[int]]  # [source][destination]: rows of each stream

_Job = job_of(__file__)


def _slot_bytes(job: Job) -> int:
    return int(_HEADER_BYTES + job.slot_rows * job.row_bytes)


def _chunks(job: Job, rows: int) -> int:
    return max(1, -(-rows // int(job.slot_rows)))


# ---- task 1 ---------------------------------------------------------------------------------------------------------
def _credits_case(_: Rng, slots: int, first: int = 0) -> Case:
    job = _Job(max_rows=3 * slots + 4, num_slots=slots, learners=_ASK, first=first)

    def judge(out: Outputs) -> str | None:
        asked = enumerate(map(int, out["noted"][0]), first)
        return next(filter(None, (credits_wrong(slots, "chunk", *each) for each in asked)), None)

    return Case(_scenario([[0]], [job], [np.zeros(1, np.uint8)], notes=job.max_rows), judge)


# ---- streams --------------------------------------------------------------------------------------------------------
def _case(rng: Rng, counts: Counts, jobs: Sequence[Job]) -> Case:
    """One exchange, ``jobs`` by rank; judges rows, counts, counters, and how far each sender ran ahead."""
    ranks = len(counts)
    sources = [random_bytes(rng, ranks * jobs[0].max_rows * jobs[0].row_bytes) for _ in range(ranks)]

    def judge(out: Outputs, me: int) -> str | None:
        return _counters_wrong(out, me, counts, jobs[me]) or _rank_wrong(out, me, counts, jobs[me], sources)

    return Case(_scenario(counts, jobs, sources, notes=2 * ranks), each_rank(ranks, judge))


def _rank_wrong(out: Outputs, me: int, counts: Counts, job: Job, sources: Sequence[Array]) -> str | None:
    area = (len(counts), job.max_rows, job.row_bytes)
    got = out["out"][me].reshape(area)
    for peer, row in enumerate(counts):
        rows, lead = row[me], int(out["noted"][me][peer])
        way = f"from rank {peer} to rank {me}"
        if lead > job.num_slots:
            return f"{lead} chunks were under way {way} in a ring of {job.num_slots} slots"
        if int(out["received"][me][peer]) == _UNTOLD:
            return f"streams.received was never written for what came {way}, {rows} rows"
        if int(out["received"][me][peer]) != rows:
            return f"{int(out['received'][me][peer])} rows were counted {way}, and {rows} were sent"
        wrong = (got[peer, :rows] != sources[peer].reshape(area)[me, :rows]).any(axis=1)
        if wrong.any():
            return f"{int(wrong.sum())} of {rows} rows {way} are wrong, the first is row {int(wrong.argmax())}"
        if got[peer, rows:].any():
            return f"memory behind the {rows} rows {way} was overwritten"
        woken, chunks = int(out["noted"][me][len(counts) + peer]), _chunks(job, counts[me][peer])
        if woken > chunks:
            what = f"{woken} of its waits were ended by credits alone: such a wait runs into no time limit"
            return f"rank {me} sends {chunks} chunk{'s' * (chunks > 1)} to rank {peer}, and {what}"
    return None


def _counters_wrong(out: Outputs, me: int, counts: Counts, job: Job) -> str | None:
    ranks, slots = len(counts), job.num_slots
    for peer in range(ranks):
        sent = _chunks(job, counts[me][peer])
        if (given := int(out["credits"][me][peer])) != sent:
            return f"after {sent} chunks from rank {me} to rank {peer}, rank {me} has {given} of its credits"
        last = [0] * slots
        for chunk in range(_chunks(job, counts[peer][me])):
            last[chunk % slots] = chunk + 1
        for slot, want in enumerate(last):
            if (arrived := int(out["arrived"][me][peer * slots + slot])) != want:
                return f"the arrival of slot {slot} is {arrived} in the end where it should be {want}"
    return None


def _scenario(counts: Counts, jobs: Sequence[Job], sources: Sequence[Array], *, notes: int) -> Scenario:
    ranks, job = len(counts), jobs[0]
    memory = np.zeros(ranks * job.num_slots * _slot_bytes(job), np.uint8)
    return Scenario(
        ranks=ranks,
        launches=Launch(2 * ranks, 32),
        outputs=("inbox", "arrived", "credits", "out", "received", "noted"),
        symmetric={
            "inbox": memory,
            "staging": memory,
            "arrived": np.zeros(ranks * job.num_slots, np.uint64),
            "credits": np.zeros(ranks, np.uint64),
        },
        local={
            "source": sources,
            "counts": list(np.array(counts, np.int32)),
            "chunks": [np.array([_chunks(job, row[me]) for row in counts], np.int32) for me in range(ranks)],
            "out": np.zeros_like(sources[0]),
            "received": np.full(ranks, _UNTOLD, np.int32),
            "noted": np.zeros(notes, np.uint64),
            "numbers": [job_numbers(each) for each in jobs],
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
_PAIR: Counts = ((3, 9), (7, 0))
_LONG: Counts = ((0, 12), (12, 1))
_UNEVEN: Counts = ((0, 12, 11), (0, 0, 0), (3, 0, 0))


@drawn
def _streams(rng: Rng, job: Job, *slots: int, counts: Counts = _PAIR) -> Iterator[Case]:
    """The same part is the learner's on every rank, with each of these numbers of slots."""
    for number in slots:
        yield _case(rng, counts, [replace(job, num_slots=number)] * len(counts))


@drawn
def _drawn(rng: Rng, learners: int) -> Iterator[Case]:
    """Streams of any length, some of them empty, over more ranks and more slots."""
    for ranks, slots, slot_rows in ((1, 1, 1), (3, 1, 2), (4, 3, 1), (2, 8, 3), (2, 2, 270)):
        job = _Job(num_slots=slots, slot_rows=slot_rows, max_rows=max(12, 2 * slot_rows + 5), learners=learners)
        counts = rng.integers(0, job.max_rows + 1, (ranks, ranks))
        counts[rng.random((ranks, ranks)) < 0.2] = 0
        yield _case(rng, counts.tolist(), [job] * ranks)


@drawn
def _merged_with(rng: Rng, order: int, counts: Counts = _LONG, slots: int = 2) -> Iterator[Case]:
    """Rank 0 has the learner's one block per peer, the others have the grader's two ends, one after the other."""
    learner, grader = _Job(num_slots=slots, learners=_MERGED), _Job(num_slots=slots, order=order)
    # No rank takes turns with itself: its own stream would never end.
    quiet = [[0 if source == to else rows for to, rows in enumerate(row)] for source, row in enumerate(counts)]
    yield _case(rng, quiet, [learner, *[grader] * (len(counts) - 1)])


@drawn
def _alone(rng: Rng, learners: int) -> Iterator[Case]:
    """No chunk is taken out: the sender gives up behind its last slot, and does not report how much it has received.
    The slots are enough for the rows that rank 2 gets."""
    counts = ((0, 12, 3), (12, 0, 0), (0, 0, 0))
    nobody = _Job(alone=2)
    case = _case(rng, counts, [_Job(learners=learners, alone=1), nobody, nobody])
    source = given(case, "source")

    def judge(out: Outputs) -> str | None:
        arrived = out["arrived"][1][:4].tolist()
        if arrived != [1, 2, 0, 0]:
            return f"nothing was taken out of two slots, and the arrivals from rank 0 are {arrived[:2]}, not 1 and 2"
        if np.any(out["received"][0] != _UNTOLD):
            return "nothing came from a peer until the time limit, and streams.received was written all the same"
        slots = out["inbox"][1][: 2 * _SLOT_BYTES].reshape(2, _SLOT_BYTES)[:, _HEADER_BYTES:]
        right = np.all(slots.ravel() == source[12 * 48 :][: slots.size])
        return None if right else "a slot that was not free was filled"

    yield Case(replace(of_kernels(case), fabric=RC), judge, endless=True)


_TAKEN = "Chunk c takes the slot of chunk c - num_slots; how many chunks have been taken out when that one has?"
_OWN = (
    "One lane posts one operation, data and then arrival. Each chunk has its own staging slot, and its own slot and "
    "arrival in this rank's part of the peer's memory; the arrival is the chunk's number plus 1."
)
_CREDIT = "First read, then give the slot back: one credit per chunk, by one lane, to the peer's counter for this rank."
_ASK_FIRST = "Each chunk may be filled in once wait_for_credit says so, and not before."
_QUIET = "When the kernel has ended, the staging slots belong to the caller again: one quiet, at the end."
_AHEAD = "With n slots the sender may be n chunks ahead: it waits for the credits that this chunk needs, and no more."
_EITHER = "Wait for either, do what is possible, and wait again: never for an arrival alone, nor for a credit alone."
_ALL = (
    "Send all chunks and no more, also if the peer's last one comes long before: go on until both directions are done."
)


def _checked(learners: int, *slots: int, delay: int = 0, reuse: int = 0) -> Cases:
    return under_checker(_streams(_Job(learners=learners, delay=delay, reuse=reuse), *slots), seeds=3)


def _all(learners: int) -> Cases:
    """More chunks than 8 bits count, from a rank to itself."""
    many = _Job(num_slots=8, slot_rows=1, row_bytes=16, max_rows=260, learners=learners)
    return all_of(on_fabrics(_drawn(learners), RC, SRD), on_fabrics(one(_case, [[260]], [many]), RC))


_FULL = _streams(_Job(learners=_SENDER, patient=1), 1, 4, counts=_LONG)
_CREDITS = several(_credits_case, (1,), (2,), (5,), (260,), (5, (1 << 32) - 3))
_STAGED, _TAKEN_OUT = _checked(_SEND_CHUNK, 2, delay=30), _checked(_TAKE_CHUNK, 1, 2)
_LONG_AND_SHORT = _merged_with(_AT_ONCE, _UNEVEN)
_ENDED, _FILLED = "nothing is still under way when the kernel has ended", "a slot is filled when it is free"
_GONE = "After the limit the kernel returns."

BEHAVIOURS = (
    Behaviour(1, "every chunk knows its credits", on_fabrics(_CREDITS, RC), _TAKEN),
    Behaviour(2, "an arrival is never seen before its chunk", on_fabrics(_checked(_SEND_CHUNK, 3), SRD, RC), _OWN),
    Behaviour(2, "no staging slot is filled while the NIC may read it", on_fabrics(_STAGED, RC, SRD), _OWN),
    Behaviour(2, "streams of every length arrive", _all(_SEND_CHUNK), _OWN),
    Behaviour(3, "a chunk is worth one credit", on_fabrics(_streams(_Job(learners=_TAKE_CHUNK), 8), RC, SRD), _CREDIT),
    Behaviour(3, "a slot is given back when it has been read", on_fabrics(_TAKEN_OUT, RC, SRD), _CREDIT),
    Behaviour(3, "streams of every length are taken out", on_fabrics(_drawn(_TAKE_CHUNK), RC, SRD), _CREDIT),
    Behaviour(4, _ENDED, on_fabrics(_checked(_SENDER, 8, reuse=1), RC, SRD), _QUIET),
    Behaviour(4, _FILLED, on_fabrics(_checked(_SENDER, 1, 2, delay=30), RC, SRD), _ASK_FIRST),
    Behaviour(4, "all slots are used", on_fabrics(_FULL, RC, SRD), _AHEAD),
    Behaviour(4, "a peer that takes nothing", _alone(_SENDER), _GONE),
    Behaviour(4, "streams of every length arrive", on_fabrics(_drawn(_SENDER), SRD, _SHALLOW), _ASK_FIRST),
    Behaviour(5, "a long stream against a short one", on_fabrics(_LONG_AND_SHORT, RC, SRD), f"{_EITHER} {_ALL}"),
    Behaviour(5, "it receives while it waits for a credit", on_fabrics(_merged_with(_SEND_FIRST), RC, SRD), _EITHER),
    Behaviour(5, "it sends while nothing comes", on_fabrics(_merged_with(_RECEIVE_FIRST), RC, SRD), _EITHER),
    Behaviour(5, "a peer that takes nothing", _alone(_MERGED), _GONE),
    Behaviour(5, "streams of every length, both ways", on_fabrics(_drawn(_MERGED), RC, SRD, _SHALLOW), _ALL),
    Behaviour(5, _FILLED, on_fabrics(_checked(_MERGED, 1, 2), RC, SRD), _ASK_FIRST),
    Behaviour(5, _ENDED, on_fabrics(_checked(_MERGED, 8, reuse=1), RC, SRD), _QUIET),
)

REHEARSED = 99  # cases of each, in the public checks

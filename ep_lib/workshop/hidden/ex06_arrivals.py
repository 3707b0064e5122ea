"""Hidden tests of exercise 06_arrivals: a grid writes to all ranks and signals, over several epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.workshop.grader.scenario import Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, on_fabrics, one, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_words
from ep_lib.workshop.hidden.judging import each_rank
from ep_lib.workshop.hidden.networks import IN_A_NODE

# Mirrors constants of the .cu file.
_SIGNAL, _WAIT, _LAST = 1, 2, 4
_KINDS, _GAVE_UP = 3, 1 << 16
_YES, _AFTER_FAILURE = 1, 2

_Job = job_of(__file__)


def _case(rng: Rng, job: Job, *, ranks: int = 3, idle: int = 0, epochs: int = 3, threads: int = 64) -> Case:
    """Judges what arrived, the table of signals, and which block was the last. ``idle``: blocks of the grid that take
    no part."""
    sources = [random_words(rng, (epochs, job.words)) for _ in range(ranks)]
    here = [rank for rank in range(ranks) if not job.masked >> rank & 1 and rank != job.absent]

    def judge(out: Outputs, me: int) -> str | None:
        if me not in here:
            return f"rank {me} is left out, and got a signal" if np.any(out["flags"][me]) else None
        for epoch, notes in enumerate(out["noted"][me].tolist(), start=1):
            if problem := _epoch_wrong(f"in epoch {epoch}, ", notes, me, job, idle):
                return problem
        if int(out["finished"][me][0]):
            return f"finished_blocks is {int(out['finished'][me][0])} after the last kernel of rank {me}; 0 is right"
        flags = out["flags"][me].astype(np.int64)
        want = np.zeros_like(flags)
        want[job.kind, here] = 2 * epochs * job.unit + job.ahead
        if np.any(flags != want):
            kind, source = map(int, np.argwhere(flags != want)[0])
            return f"on rank {me}, flags[{kind}][{source}] is {int(flags[kind, source])} in the end"
        wrong = out["out"][me][:, here] != np.stack([sources[source] for source in here], axis=1)
        if np.any(wrong):
            return f"{int(wrong.sum())} of {wrong.size} words that rank {me} read after the wait are wrong"
        return None

    launches = [Launch(job.blocks + idle, threads, (epoch,)) for epoch in range(1, epochs + 1)]
    scenario = Scenario(
        ranks=ranks,
        launches=[launches if rank in here else () for rank in range(ranks)],
        called_by="block",
        outputs=("flags", "finished", "out", "noted"),
        symmetric={
            "flags": np.zeros((_KINDS, ranks), np.uint64),
            "tags": Room((2, _KINDS, ranks), np.uint64),
            "inbox": Room((2, ranks, job.words), np.uint64),
        },
        local={
            "finished": np.zeros(1, np.uint32),
            "source": sources,
            "out": Room((epochs, ranks, job.words), np.uint64),
            "noted": np.zeros((epochs, 5), np.int32),
            "numbers": job_numbers(job),
        },
    )
    return Case(scenario, each_rank(ranks, judge))


def _epoch_wrong(when: str, notes: list[int], me: int, job: Job, idle: int) -> str | None:
    number, answer, otherwise, wrong_tags, unwritten = notes
    failed = f"; `ok` was false in {job.failing.bit_count()} of {job.blocks} blocks" if job.failing else ""
    if number != 1:
        called = f"; {job.blocks} of the grid's {job.blocks + idle} had called" if idle else ""
        return f"{when}{number} blocks of rank {me} were told to be the last{called}{failed}"
    if otherwise:
        return f"{when}{otherwise} threads of a block were told something else than thread 0"
    if answer != (_AFTER_FAILURE if job.failing else _YES):
        said = {_YES: "kYes", _AFTER_FAILURE: "kAfterFailure"}.get(answer, str(answer))
        return f"{when}the last block of rank {me} was told {said}{failed}"
    if wrong_tags >= _GAVE_UP:
        return f"{when}all ranks had come, and the wait on rank {me} did not return true"
    if unwritten:
        return (
            f"{when}another block than the last waited on rank {me} too, and {unwritten} words that rank {me} itself "
            "had written were not there after that"
        )
    return f"{when}{wrong_tags} tags on rank {me} were not those that the ranks passed" if wrong_tags else None


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _epochs(rng: Rng, /, learners: int, *ranks: int, failing: tuple[int, ...] = (0,), **more: int) -> Iterator[Case]:
    for seed, count in enumerate(ranks):
        odd = seed % 2
        job = _Job(kind=seed % _KINDS, learners=learners, delay=30 * odd, unit=1 << 32 * odd, **more)
        job = replace(job, blocks=1 + 2 * (seed + 1) % 5, failing=failing[seed % len(failing)])
        yield _case(rng, job, ranks=count, idle=odd)


def _everywhere(learners: int, *ranks: int) -> Cases:
    """Over NVLink, and four ranks of a node that has NICs as well."""
    return all_of(_epochs(learners, *ranks), on_fabrics(_epochs(learners, 4), *IN_A_NODE))


def _more_ranks_than_threads(learners: int) -> Cases:
    # Rank 2 is not left out, though 34 % 32 is 2; ranks 32 and above come when all others have.
    job = _Job(words=1, learners=learners, masked=1 << 34, late=32, delay=100, blocks=1)
    return one(_case, job, ranks=36, epochs=1, threads=32)


@drawn
def _in_vain(rng: Rng) -> Iterator[Case]:
    """The second of three ranks does not come."""
    threads = 64

    def judge(out: Outputs, me: int) -> str | None:
        if me != 1 and int(out["noted"][me][0, 3]) != threads * _GAVE_UP:
            return "a rank did not come, and not all threads were told so"
        if me != 1 and int(out["noted"][me][0, 4]):
            return "a rank did not come, and the recorded fault is not about {phase, peer, kind} of that wait"
        return None

    case = _case(rng, _Job(learners=_WAIT, absent=1), epochs=1, threads=threads)
    yield replace(case, judge=each_rank(3, judge), endless=True)


_TABLE = (
    "Entry [kind][rank()] of every rank that is not left out: the tag by a plain store, then the epoch with release."
)
_ALL = (
    "Every rank that is not left out, entries that are at least the epoch of the call; "
    "a barrier that also hands out the answer."
)
_COUNT = "Barrier, one count per block with acquire and release; `last` is for all threads; back to 0."

_MANY = one(_case, _Job(words=1, learners=_LAST, blocks=260), ranks=1, epochs=2, threads=32)
_LAST_THREAD = one(
    _case, _Job(words=1, learners=_LAST, blocks=1, failing=1, fails=1023), ranks=1, epochs=1, threads=1024
)
_FAILING = _epochs(_LAST, 2, 2, failing=(0b1, 0b11010))

BEHAVIOURS = (
    Behaviour(1, "every rank gets one signal in each epoch", _everywhere(_SIGNAL, 2, 4), _TABLE),
    Behaviour(1, "a rank that is left out gets none", _epochs(_SIGNAL, 3, 4, masked=4), _TABLE),
    Behaviour(1, "rows and tags are there when the signal is seen", under_checker(_epochs(_SIGNAL, 2, 3)), _TABLE),
    Behaviour(1, "more ranks than threads", _more_ranks_than_threads(_SIGNAL), _TABLE),
    Behaviour(2, "all ranks have come when it returns", _everywhere(_WAIT, 2, 4), _ALL),
    Behaviour(2, "a rank that is left out is not waited for", _epochs(_WAIT, 3, 4, masked=4), _ALL),
    Behaviour(2, "a rank that is an epoch ahead has come, too", _epochs(_WAIT, 2, 3, ahead=1), _ALL),
    Behaviour(2, "a rank that never comes", _in_vain(), f"False after the limit, in all threads. {_ALL}"),
    Behaviour(2, "every thread may read every rank's rows", under_checker(_epochs(_WAIT, 2, 3)), _ALL),
    Behaviour(2, "more ranks than threads", _more_ranks_than_threads(_WAIT), _ALL),
    Behaviour(3, "one block in each epoch", _everywhere(_LAST, 2, 3, 4), _COUNT),
    Behaviour(3, "more blocks than 8 bits count", _MANY, _COUNT),
    Behaviour(3, "a failure in any block", all_of(_FAILING, _LAST_THREAD), _COUNT),
    Behaviour(3, "the rows of all blocks are published", under_checker(_epochs(_LAST, 2, 2), 8), _COUNT),
)

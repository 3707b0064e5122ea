"""Hidden tests of exercise 01_board: each call's answer in turn, and every schedule of two ranks at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.emulator.accesses import COUNT, STORES, UPDATES
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import drawn, one, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of

# Mirrors constants of the .cu file.
_BEGIN, _PUBLISH, _READ = (1 << bit for bit in range(3))
_BEGAN, _READS = range(2)
_TOGETHER, _TORN, _NO_EDITION, _TRACE, _CHANGED, _LEFT, _LEFT_WORDS = range(7)
_AFTERWARDS = -1
_BEFORE = 7
_STEP, _ROUNDS = 1 << 20, 2
_HEAP_BYTES = 1 << 16  # small, as it is made for every schedule

_CAS = ". Of two who see the same even number one alone may make it odd: a compare-and-swap"
_NO_TRACE = ". Who is too late leaves no trace, not even for a while: a compare-and-swap writes only where it wins"

_Job = job_of(__file__)


def _words(number: int, count: int) -> Array:
    return np.arange(count, dtype=np.uint64) + np.uint64(number * _STEP % (1 << 64))


def _in_turn(learners: int, count: int, ranks: int, first: int) -> Case:
    """One rank does everything, on a board of another rank, and notes the answers."""
    job = _Job(learners, count, home=ranks - 1, actor=ranks // 2 - (ranks == 1))
    job = _Job(learners, count, job.home, max(0, job.actor))
    expected: list[tuple[str, int]] = []
    for edition in (first + 2 * round_ for round_ in range(_ROUNDS)):
        even, odd = f"when edition {edition} is complete,", f"while a writer holds number {edition + 1},"
        expected += [(f"{even} try_read returned", True), (f"{even} try_read gave the number", edition)]
        expected += [(f"{even} try_read gave as word {i}", int(word)) for i, word in enumerate(_words(edition, count))]
        expected += [(f"{even} try_begin returned", True), (f"{even} try_begin gave the number", edition + 1)]
        expected += [(f"{even} try_begin left the number", edition + 1)]
        expected += [(f"{odd} try_begin returned", False)]
        expected += [(f"{odd} try_begin returned false, and changed *number to", _BEFORE)]
        expected += [(f"{odd} try_read returned", False)]

    def judge(out: Outputs) -> str | None:
        noted = out["noted"][job.actor]
        for value, (what, want) in zip(noted, expected, strict=True):
            if int(value) != want:
                return f"{what} {str(type(want)(value)).lower()}, where {str(want).lower()} is right"
        last = first + 2 * _ROUNDS
        for rank in range(ranks):
            board, edition = out["board"][rank], int(out["edition"][rank][0])
            if np.any(board != _words(last if rank == job.home else first, count)):
                where = "after publish" if rank == job.home else f"on rank {rank}, whose board is not meant,"
                return f"{where} the words on the board were others"
            if edition != (last if rank == job.home else first):
                return f"in the end the edition of rank {rank} was {edition}"
        return None

    return Case(_scenario(job, first, ranks), judge)


def _at_once(rng: Rng, learners: int, writers: int = 1) -> Case:
    """Two ranks at the same time, in every schedule, with every value that the memory model allows."""
    first = 2 * int(rng.integers(1, 1 << 20))
    # While the learner's reader looks, many editions come: the lower half of the number may be the same again.
    ahead = (1 << 32) - 2 if writers == 1 and not learners & _PUBLISH else 0
    job = _Job(learners, 2 if writers == 1 else 1, home=writers % 2, writers=writers, first=first, ahead=ahead)
    scenario = _scenario(job, first, 2)
    if writers > 1:  # with one writer, the largest values are enough
        scenario = replace(scenario, afterwards=(Launch(1, 1, task=_AFTERWARDS),))

    def judge(out: Outputs) -> str | None:
        told, wrong = np.max(out["told"], axis=0), np.max(out["wrong"], axis=0)
        board, edition = out["board"][job.home], int(out["edition"][job.home][0])
        if wrong[_TOGETHER]:
            return f"in some schedule two writers had begun at the same time{_CAS}"
        if wrong[_CHANGED]:
            return "in some schedule the number was changed again while the next writer was at work"
        if wrong[_TRACE]:
            return "in some schedule a try_begin that returned false has changed *number"
        if wrong[_TORN]:
            return (
                "in some schedule a reader was told that all is well, and had words of two editions, or of another one"
            )
        if wrong[_NO_EDITION]:
            return "in some schedule a reader was given the words of an edition that was still being written"
        if not told[_BEGAN]:
            return "in no schedule a writer could begin"
        if writers == 1 and not told[_READS]:
            return "in no schedule a reader was given the words"
        if wrong[_LEFT]:
            return (
                "in some schedule the number on the board in the end was not 2 more for each writer that had begun"
                f"{'' if learners & _PUBLISH else _NO_TRACE}"
            )
        if wrong[_LEFT_WORDS]:
            return "in some schedule the words on the board in the end were not those of its number"
        most = first + 2 * writers + job.ahead
        if edition != most:
            return f"after {writers} editions at most, the number on the board had grown by up to {edition - first}"
        if np.any(board != _words(most, job.count)):
            return "in some schedule the words on the board were of no edition in the end"
        return None

    return Case(scenario, judge)


def _reading(rng: Rng, edition: int) -> Case:
    """Two ranks that only read a board that has no writer, or whose writer has begun and does not go on."""
    job = _Job(_READ, 3, home=1, writers=0)
    first = 2 * int(rng.integers(1, 1 << 20)) + edition
    scenario = _scenario(job, first, 2)

    def judge(out: Outputs) -> str | None:
        told, wrong = np.array(out["told"])[:, _READS], np.max(out["wrong"], axis=0)
        if np.any(told != 1 - edition) or (not edition and wrong[_TORN]):
            return "two readers were not given the words of a complete edition, or those of one that is being written"
        for name, what in (("edition", "number"), ("board", "words")):
            kinds = sum(each.sum(axis=(0, 2, 3))[:, COUNT] for each in out.accesses[name])
            if writes := int(kinds[STORES] + kinds[UPDATES]):
                return f"try_read made {writes} stores or atomics on the board's {what}: a reader only loads"
        return None

    return Case(replace(scenario, exhaustive=False, watched=("edition", "board")), judge)


def _scenario(job: Job, first: int, ranks: int) -> Scenario:
    return Scenario(
        ranks=ranks,
        launches=Launch(1, 1),
        called_by="warp",
        outputs=("edition", "board", "told", "wrong", "noted"),
        symmetric={
            "edition": np.full(1, first, np.uint64),
            "board": _words(first, job.count),
            "inside": np.zeros(1, np.uint64),
            "told": np.zeros(2, np.uint64),
        },
        local={
            "mine": Room(job.count, np.uint64),
            "wrong": np.zeros(7, np.uint64),
            "noted": np.zeros(_ROUNDS * (8 + job.count), np.uint64),
            "numbers": job_numbers(job),
        },
        heap_bytes=_HEAP_BYTES,
        exhaustive=job.actor < 0,
        alarm="wrong",
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _answers(rng: Rng, learners: int) -> Iterator[Case]:
    sizes = (3, 2), (1, 1), (int(rng.integers(4, 12)), 3), (int(rng.integers(257, 320)), 2)
    # A new board, and one whose next edition has a word of 0; then two with random numbers.
    firsts = 0, (1 << 64) // _STEP - 2, *(2 * int(each) for each in rng.integers(1 << 33, 1 << 40, 2))
    for (count, ranks), edition in zip(sizes, firsts, strict=True):
        yield _in_turn(learners, count, ranks, edition)


_ANSWERS = (
    "No call waits. Number and words are those of rank board.home; an odd number says that somebody is writing, and "
    "try_begin makes an even one odd, by 1."
)
_FENCE = "A fence before the words keeps the odd number before them; a release keeps them before the even number."
_LOADS = "An atomic that changes nothing writes all the same: the line goes to the reader, and others wait for it."
_LOOKS = (
    "An acquire for the first look, and a fence between the words and the second: both looks must give one even number."
)

BEHAVIOURS = (
    Behaviour(1, "each call's answer", _answers(_BEGIN), _ANSWERS),
    Behaviour(1, "two writers, in every schedule", one(_at_once, _BEGIN, 2)),
    Behaviour(2, "each call's answer", _answers(_PUBLISH), _ANSWERS),
    Behaviour(2, "a writer and a reader, in every schedule", one(_at_once, _PUBLISH), _FENCE),
    Behaviour(2, "two writers, in every schedule", one(_at_once, _PUBLISH, 2), _FENCE),
    Behaviour(3, "each call's answer", _answers(_READ), _ANSWERS),
    Behaviour(3, "readers leave no trace", under_checker(several(_reading, (0,), (1,)), 1), _LOADS),
    Behaviour(3, "a writer and a reader, in every schedule", one(_at_once, _READ), _LOOKS),
    *(Behaviour(task, "nothing races", under_checker(_answers(1 << task - 1), 1)) for task in (1, 2, 3)),
)

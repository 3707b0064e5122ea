"""The checker and an independent oracle agree on every run of random programs: no race missed, none invented."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support import happens_before
from support.happens_before import Op, Program, judged, random_program

KINDS = {"race", "scope", "width", "slot reused"}


def disagreements(program: Program, seeds: int) -> tuple[list[int], list[int]]:
    """Seeds with races that were missed, and seeds with findings but no race."""
    report, flagged, racy = judged(program, seeds)
    assert {f.kind for f in report.findings} <= KINDS, str(report)
    return sorted(racy - flagged), sorted(flagged - racy)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_oracle_agrees(first: int) -> None:
    for number in range(first, first + 10):
        assert disagreements(random_program(number), 8) == ([], []), f"program {number}"


@pytest.mark.slow
def test_the_oracle_agrees_on_more_programs(seeds: int) -> None:
    for number in range(40, 40 + 2 * seeds):
        assert disagreements(random_program(number), 20) == ([], []), f"program {number}"


def test_the_programs_have_runs_of_both_kinds() -> None:
    """Else agreeing means nothing."""
    racy = sum(len(judged(random_program(number), 4)[2]) for number in range(20))
    assert 10 < racy < 20 * 4 - 10


# ---- what the checker got wrong once, one program each -------------------------------------------------------------
PLAIN, ATOMIC, EXCHANGE, FENCE = (
    happens_before.PLAIN,
    happens_before.ATOMIC,
    happens_before.EXCHANGE,
    happens_before.FENCE,
)
RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = range(5)
BLOCK, DEVICE, SYSTEM = range(3)
_numbers = itertools.count(1)


def at(kind: int, writes: bool, order: int = RELAXED, *, offset: int = 0, width: int = 4, scope: int = SYSTEM) -> Op:
    return Op(kind, writes, order, scope, width, offset, number=next(_numbers))


def two_ranks(*threads: list[Op]) -> Program:
    return Program(len(threads), 1, 1, tuple(map(tuple, threads)))


def when(read: Op, op: Op) -> Op:
    return Op(**{**vars(op), "guard": read.number})


def a_release_then_a_relaxed_store() -> Program:
    """st.release x; st.relaxed x is a release pattern of both stores."""
    see = at(ATOMIC, False, ACQUIRE)
    send = [at(PLAIN, True, offset=24), at(ATOMIC, True, RELEASE), at(ATOMIC, True)]
    return two_ranks(send, [see, when(see, at(PLAIN, False, offset=24))])


def a_flag_that_its_sender_cleared() -> Program:
    """What an acquire orders, it orders before itself: the plain store to the flag."""
    see = at(ATOMIC, False, offset=8)
    first = at(ATOMIC, False, ACQUIRE)
    send = [at(PLAIN, True), at(ATOMIC, True, RELEASE), at(ATOMIC, True, offset=8)]
    return two_ranks(send, [see, when(see, first)])


def a_flag_that_its_reader_clears() -> Program:
    """A write comes before what follows a read that observes it, be it relaxed; not before that read itself."""
    see = at(ATOMIC, False)
    return two_ranks([at(ATOMIC, True)], [see, when(see, at(PLAIN, True))])


def a_counter_that_another_thread_clears() -> Program:
    """The last of three adders has seen the others' additions, and tells a fourth thread by a release."""
    sees, told = at(EXCHANGE, True), at(ATOMIC, False, ACQUIRE, offset=8)
    tells = [sees, when(sees, at(ATOMIC, True, RELEASE, offset=8))]
    return two_ranks([at(EXCHANGE, True)], [at(EXCHANGE, True)], tells, [told, when(told, at(PLAIN, True))])


def an_acquire_behind_a_relaxed_read() -> Program:
    """The relaxed read saw the release; the acquire of the same location, which has changed since, completes it."""
    see, acquire = at(ATOMIC, False), at(ATOMIC, False, ACQUIRE)
    send = [at(PLAIN, True, offset=24), at(ATOMIC, True, RELEASE)]
    return two_ranks(send, [see, acquire, when(see, at(PLAIN, False, offset=24))], [at(ATOMIC, True)])


def a_wider_atomic_behind_a_narrower_one() -> Program:
    return two_ranks([at(ATOMIC, True), at(ATOMIC, True, width=8)], [at(ATOMIC, False, width=8)])


def readers_of_overlapping_bytes() -> Program:
    """Six different accesses of one thread to one granule, and a writer that meets the first of them only."""
    reads = [at(PLAIN, False, offset=o, width=w) for o, w in ((0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (0, 2), (8, 4))]
    return two_ranks(reads, [at(PLAIN, True, offset=0, width=1)])


def a_store_takes_the_release_away() -> Program:
    """Who acquires what a plain store left there has acquired nothing."""
    see = at(ATOMIC, False, ACQUIRE)
    send = [at(PLAIN, True, offset=24), at(ATOMIC, True, RELEASE), at(PLAIN, True)]
    return two_ranks(send, [see, when(see, at(PLAIN, False, offset=24))])


def a_chain_that_a_narrow_scope_breaks() -> Program:
    """The exchange of the block's scope does not see the other rank's release, so it does not pass it on."""
    see = at(ATOMIC, False, ACQUIRE)
    send = [at(PLAIN, True, offset=24), at(ATOMIC, True, RELEASE)]
    passes = at(EXCHANGE, True, scope=BLOCK)
    return two_ranks(send, [passes, at(ATOMIC, True, offset=16)], [see, when(see, at(PLAIN, False, offset=24))])


def an_acquire_fence_is_no_release() -> Program:
    see = at(ATOMIC, False, ACQUIRE)
    fence = Op(FENCE, order=ACQUIRE, number=next(_numbers))
    return two_ranks(
        [at(PLAIN, True, offset=24), fence, at(ATOMIC, True)], [see, when(see, at(PLAIN, False, offset=24))]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        a_release_then_a_relaxed_store,
        a_flag_that_its_sender_cleared,
        a_flag_that_its_reader_clears,
        a_counter_that_another_thread_clears,
        an_acquire_behind_a_relaxed_read,
        a_wider_atomic_behind_a_narrower_one,
        readers_of_overlapping_bytes,
        a_store_takes_the_release_away,
        a_chain_that_a_narrow_scope_breaks,
        an_acquire_fence_is_no_release,
    ],
)
def test_a_program_that_was_judged_wrongly(make: Any) -> None:
    assert disagreements(make(), 40) == ([], [])


@pytest.mark.parametrize(
    ("fence", "behind", "is_right"),
    [(SEQ_CST, SEQ_CST, True), (ACQ_REL, SEQ_CST, False), (SEQ_CST, ACQ_REL, False), (SEQ_CST, ACQUIRE, False)],
)
def test_a_fence_before_a_barrier_is_enough_only_for_a_fence_sc(fence: int, behind: int, is_right: bool) -> None:
    """A fence covers what its own thread has done; but Fence-SC order cannot contradict causality order."""

    def fenced(order: int, guard: int = 0) -> Op:
        return Op(FENCE, order=order, number=next(_numbers), guard=guard)

    data, see = at(PLAIN, True, offset=24), at(ATOMIC, False)
    met = Op(happens_before.BLOCK_BARRIER)
    writers = ([data, fenced(fence), met], [fenced(fence), met, at(ATOMIC, True)])
    reader = [see, fenced(behind, see.number), when(see, at(PLAIN, False, offset=24))]
    program = Program(1, 2, 2, (*map(tuple, writers), tuple(reader), ()))
    report, flagged, racy = judged(program, 40)
    assert flagged == racy and report.ok == is_right, str(report)

"""Hidden tests of exercise 01: write, then signal.

By values where a mistake shows in them, and under the checker: the emulator's memory is sequentially consistent, so
only the checker sees a relaxed signal in place of a release, or a volatile load in place of an acquire.
"""

from __future__ import annotations

from collections.abc import Iterator

from ep_lib.workshop.hidden import Behaviour, Case
from ep_lib.workshop.hidden.common import BACK, BOTH, PAIR, Cases, Rng, Route, one, under_checker
from ep_lib.workshop.hidden.ex01_cases import SOURCE, Job, message_case, pipe_case, wait_case

KERNELS = ((SOURCE, "examine"),)

_ROUTES: tuple[Route, ...] = (BACK, BOTH, (1, 2, 0), (2, 0, 1), (-1, 3, -1, 1), (3, 2, 1, 0), (1, 2, 3, 0))
# ---- what is asked --------------------------------------------------------------------------------------------------
_SIZES = (0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 63, 100, 127, 128, 511, 512, 513, 1000, 4096, 5001)
_OFFSETS = ((0, 0), (1, 0), (0, 3), (5, 5), (8, 4), (15, 2))


def _sizes(task: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for number, size in enumerate(_SIZES):
            target, source = _OFFSETS[number % len(_OFFSETS)]
            job = Job(bytes=size, target=target, source=source, increment=1 + number % 3 * 1000, steps=1 + number % 5)
            yield message_case(task, rng, 100 + number, job)

    return cases


def _order(task: int, seeds: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed in range(seeds):
            units, size = ((1, 4096), (4, 4096), (1, 20000), (3, 9001), (1, 60001))[seed % 5]
            yield message_case(task, rng, 1000 + seed, Job(units=units, bytes=size, increment=seed + 1, steps=4))

    return cases


def _signals(task: int) -> Cases:
    """Small messages: the checker sees what is not ordered whatever the schedule makes of it."""

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
    for count in (0, 1, 2, 3, 8, 16):
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


def _waits_many_threads(rng: Rng) -> Iterator[Case]:
    for seed in range(4):
        yield wait_case(rng, 5400 + seed, Job(units=64, bytes=500, steps=3, increment=2, delay=10))


def _pipes(seeds: int, **numbers: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed in range(seeds):
            slots = 1 + seed % 4
            size = (64, 5000, 33, 1024, 9000)[seed % 5]
            job = Job(bytes=size, slots=slots, steps=3 * slots + 2, target=seed % 2 * 16, delay=60, **numbers)
            yield pipe_case(rng, 6000 + seed, job)

    return cases


def _pipes_in_order(**numbers: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed, slots in enumerate((1, 3)):
            yield pipe_case(rng, 6400 + 10 * seed, Job(bytes=480, slots=slots, steps=8, delay=60, **numbers))

    return under_checker(cases)


def _pipe_rounds(rng: Rng) -> Iterator[Case]:
    for seed, (slots, rounds) in enumerate(((1, 1), (3, 2), (4, 4), (4, 5), (2, 40), (5, 33))):
        yield pipe_case(rng, 6500 + seed, Job(bytes=48, slots=slots, steps=rounds))


def _pipe_peers(rng: Rng) -> Iterator[Case]:
    for seed, route in enumerate(_ROUTES):
        yield pipe_case(rng, 6600 + seed, Job(units=1 + seed % 3, bytes=80, slots=2, steps=7), route)


_RELEASE = "Data first, then the signal, which is a release (or follows a fence in the same thread)."
_ALL_LANES = (
    "A barrier hands what all lanes wrote to the one that signals; its release, or a fence and a relaxed signal, comes "
    "after the barrier."
)
_ACQUIRE = "A load that may end the wait is an acquire: it makes visible what came before the signal."
_LAST = "When may the slot change?"
_CREDIT = "A slot is free only when the round before has been taken out of it: how many credits does that make?"

BEHAVIOURS = (
    Behaviour(1, "messages of every size arrive whole, and the signal grows by the increment", _sizes(1)),
    Behaviour(1, "whoever sees the signal may read the data", _signals(1), _RELEASE),
    Behaviour(1, "the data is there when the signal arrives", _order(1, 10)),
    Behaviour(1, "it works between all ranks, in both directions", _peers(1), "Is every address the peer's own?"),
    Behaviour(1, "many threads send at once", _side_by_side(1, 40)),
    Behaviour(2, "the data is there when the wait returns", _waits_for_data),
    Behaviour(2, "what came before the signal may be read after the wait", under_checker(_waits_in_order), _ACQUIRE),
    Behaviour(2, "a signal that is already larger is enough", _waits_at_least, "Is it >= that you wait for?"),
    Behaviour(2, "it returns at once if the signal has been there before", _waits_no_longer),
    Behaviour(2, "signals are 64 bits wide", _waits_64_bits),
    Behaviour(2, "many threads can wait for the same signal", _waits_many_threads),
    Behaviour(3, "messages of every size arrive whole, and one signal comes", _sizes(3)),
    Behaviour(3, "whoever sees the signal may read what all lanes wrote", _signals(3), _ALL_LANES),
    Behaviour(3, "the data of all lanes is there when the signal arrives", _order(3, 10)),
    Behaviour(3, "it works between all ranks, in both directions", _peers(3), "Is every address the peer's own?"),
    Behaviour(3, "several warps of a block send at once", _side_by_side(3, 4), "A lane is lane_id(), not threadIdx.x."),
    Behaviour(4, "any number of writes, none included, comes with one signal", _write_counts),
    Behaviour(4, "writes of every size arrive whole", _sizes(4)),
    Behaviour(4, "whoever sees the signal may read what all lanes wrote", _signals(4), _ALL_LANES),
    Behaviour(4, "all writes are there when the signal arrives", _order(4, 10)),
    Behaviour(4, "several warps of a block send at once", _side_by_side(4, 4), "A lane is lane_id(), not threadIdx.x."),
    Behaviour(5, "any number of rounds goes through, whatever the number of slots", _pipe_rounds),
    Behaviour(5, "no slot is overwritten before it was taken", _pipes(5, own_receive=1), _CREDIT),
    Behaviour(5, "the sender waits for the credit, and signals last", _pipes_in_order(own_receive=1), _CREDIT),
    Behaviour(5, "the receiver waits for the data, and gives the credit last", _pipes_in_order(own_send=1), _LAST),
    Behaviour(5, "no credit is given before the data has been copied", _pipes(10, own_send=1), _LAST),
    Behaviour(5, "both ends work together", _pipes(10)),
    Behaviour(5, "several pipes at once, between all ranks", _pipe_peers, "A lane is lane_id(), not threadIdx.x."),
)


PUBLIC = (
    Behaviour(1, "64 bytes arrive, and the signal grows by 1", one(lambda rng: message_case(1, rng, 1, Job()))),
    Behaviour(1, "the data is there when the signal arrives", _signals(1), _RELEASE),
    Behaviour(2, "three signals, each after its data", one(lambda rng: wait_case(rng, 1, Job(steps=3, delay=20)))),
    Behaviour(3, "64 bytes arrive, and the signal grows by 1", one(lambda rng: message_case(3, rng, 1, Job()))),
    Behaviour(3, "the data of all lanes is there when the signal arrives", _signals(3), _ALL_LANES),
    Behaviour(4, "three writes come with one signal", one(lambda rng: message_case(4, rng, 1, Job(steps=3)))),
    Behaviour(5, "two rounds go through two slots", one(lambda rng: pipe_case(rng, 1, Job(slots=2, steps=2)))),
    Behaviour(5, "five rounds go through two slots", one(lambda rng: pipe_case(rng, 1, Job(slots=2, steps=5)))),
)

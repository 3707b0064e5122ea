"""Faults on demand: a rank that stops, a link that stalls, a message that comes too late. Who notices, and how."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from support.fault_injection import kernel, launch, noticing

import ep_lib
from ep_lib import Fabric
from ep_lib.errors import ArgumentError, DeadlockError, PeerTimeout
from ep_lib.moe import Buffer

BOTH = pytest.mark.parametrize("kind", ["rc", "srd"])


@pytest.mark.extended
@pytest.mark.slow
@BOTH
def test_a_rank_that_stops_is_named_by_the_next_and_the_others_go_on(kind: str) -> None:
    fabric = Fabric(kind, stopped_ranks={1: 3})
    for seed in range(5):
        results = ep_lib.spawn(noticing, 4, "emulator", fabric=fabric, seed=seed, args=("patient", 9))
        assert results[1] is None
        rounds, error = results[2]  # waits for rank 1, whose messages that were sent may still have been with its NIC
        assert isinstance(error, PeerTimeout) and rounds <= 3
        assert (error.rank, error.peer, error.phase, error.slot) == (2, 1, "signal", rounds + 1)
        assert (error.seen, error.expected) == (rounds, rounds + 1)
        for number in (3, 0):  # these wait for a rank that has given up
            assert isinstance(results[number][1], PeerTimeout) and results[number][1].peer == (number - 1) % 4
    assert ep_lib.spawn(noticing, 4, "emulator", fabric=kind, args=("patient", 2)) == [(2, None)] * 4


@BOTH
def test_who_has_no_time_limit_is_told_of_a_deadlock(kind: str) -> None:
    fabric = Fabric(kind, stopped_ranks={1: 3})
    with pytest.raises(DeadlockError) as caught:
        ep_lib.spawn(lambda rank: launch(rank, "quiet", 9), 2, "emulator", fabric=fabric)
    text = str(caught.value)
    assert "64 bytes to rank 1 on queue pair 0 (rank 1 has stopped)" in text, text
    assert "rank 1 block 0 thread 0 is stopped" in text and "fault_injection_test.cu:" in text
    assert {w.thread.rank for w in caught.value.waiters} == {0, 1}


def test_stores_count_as_sending_too() -> None:
    def main(rank: ep_lib.Rank) -> None:
        kernel("stores").launch(rank, 1, 1, rank.symmetric(1, np.uint64), 9)

    with pytest.raises(DeadlockError, match=r"rank 0 .*sees 4[\s\S]*rank 1 .*is stopped"):
        ep_lib.spawn(main, 2, "emulator", fabric=Fabric(stopped_ranks={1: 4}))


def test_a_barrier_with_a_rank_that_stopped_says_so() -> None:
    def main(rank: ep_lib.Rank) -> str:
        launch(rank, "patient", 3)
        if rank.rank == 1:
            rank.barrier()
        with pytest.raises(PeerTimeout):
            rank.synchronize()
        with pytest.raises(DeadlockError, match=r"rank 1 has stopped \(stopped_ranks\)"):
            rank.barrier()
        return "went on"

    assert ep_lib.spawn(main, 2, "emulator", fabric=Fabric("rc", stopped_ranks={1: 0})) == ["went on", None]


@pytest.mark.extended(after=1)
@BOTH
def test_a_link_that_stalls_for_a_while_only_costs_time(kind: str) -> None:
    for seconds in (1e-6, 20):  # waits last 30 s
        fabric = Fabric(kind, stalled_links={(0, 1, 2): seconds})
        for seed in range(5):
            results = ep_lib.spawn(noticing, 2, "emulator", fabric=fabric, seed=seed, args=("quiet", 6))
            assert results == [(6, None)] * 2


@pytest.mark.extended(after=1)
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("seconds", [40, math.inf])
def test_a_link_that_stalls_for_too_long_is_a_timeout(kind: str, seconds: float) -> None:
    fabric = Fabric(kind, stalled_links={(0, 1, 2): seconds})
    for seed in range(5):
        _, (rounds, error) = ep_lib.spawn(noticing, 2, "emulator", fabric=fabric, seed=seed, args=("patient", 6))
        assert rounds <= 2 and isinstance(error, PeerTimeout)
        assert (error.rank, error.peer, error.slot, error.seen) == (1, 0, rounds + 1, rounds)


@pytest.mark.extended(after=1)
@BOTH
def test_a_late_message_within_the_limit_and_beyond_it(kind: str) -> None:
    for seconds, late in ((20, False), (40, True)):
        fabric = Fabric(kind, delayed_messages={(0, 1, 2): seconds})
        for seed in range(5):
            results = ep_lib.spawn(noticing, 2, "emulator", fabric=fabric, seed=seed, args=("patient", 6))
            rounds, error = results[1]
            assert (error is not None) == late, f"{seconds} s: {results}"
            if error is not None:  # on srd later messages overtake it, and it is the last one that is missed
                assert isinstance(error, PeerTimeout) and error.slot == rounds + 1
                assert rounds == 2 if kind == "rc" else rounds >= 2


def test_a_fault_replays_with_its_seed() -> None:
    def main(rank: ep_lib.Rank, *args: Any) -> Any:
        rounds, error = noticing(rank, *args)
        return rounds, str(error)

    fabric = Fabric("srd", stopped_ranks={1: 3}, delayed_messages={(0, 1, 1): 40})
    for seed in range(5):
        runs = [ep_lib.spawn(main, 3, "emulator", fabric=fabric, seed=seed, args=("patient", 6)) for _ in range(2)]
        assert runs[0] == runs[1]


# ---- with the library ----------------------------------------------------------------------------------------------
SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 32, "max_tokens": 8, "dtype": "float32"}


def dispatch_and_combine(rank: ep_lib.Rank) -> Any:
    """(how far the rank came, its error)."""
    x = np.ones((8, 32), np.float32)
    idx = np.array([[0, 3], [1, 2]] * 4, np.int64)
    done = 0
    with Buffer(rank, **SHAPE) as buffer:
        try:
            for _ in range(3):
                recv = buffer.dispatch(rank.to_device(x), rank.to_device(idx))
                done += 1
                buffer.combine(recv.x, recv.handle)
                done += 1
        except (PeerTimeout, DeadlockError) as error:
            return done, error
    return done, None


@pytest.mark.extended
@pytest.mark.slow
@BOTH
def test_a_rank_that_stops_inside_dispatch_and_combine(kind: str) -> None:
    reached = set()
    for after in range(0, 40, 3):
        fabric = Fabric(kind, ranks_per_node=2, stopped_ranks={1: after})
        survivor, stopped = ep_lib.spawn(dispatch_and_combine, 2, "emulator", fabric=fabric, seed=after)
        if stopped is not None:  # it never sent so often
            break
        done, error = survivor
        reached.add(done)
        assert error is not None and "rank 1" in str(error)
        if isinstance(error, PeerTimeout):
            assert (error.rank, error.peer) == (0, 1) and error.phase in ("layout", "dispatch", "combine", "barrier")
    assert len(reached) >= 4, f"it stopped after {reached} operations only"
    # the process goes on: the same program, without the fault
    assert ep_lib.spawn(dispatch_and_combine, 2, "emulator", fabric=Fabric(kind, ranks_per_node=2)) == [(6, None)] * 2


# ---- bad input -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "value", "limit"),
    [
        ({"stopped_ranks": {4: 0}}, "4: 0", "from 0 to 3"),
        ({"stopped_ranks": {0: -1}}, "0: -1", "from 0 to"),
        ({"stopped_ranks": [1]}, "[1]", "must be a dict"),
        ({"stalled_links": {(0, 4, 0): 1.0}}, "(0, 4, 0): 1.0", "from 0 to 3"),
        ({"stalled_links": {(0, 1): 1.0}}, "(0, 1): 1.0", "number of an operation"),
        ({"stalled_links": {(0, 1, 0): 0}}, "(0, 1, 0): 0", "above zero"),
        ({"delayed_messages": {(0, 1, 0): 1e9}}, "(0, 1, 0): 1000000000.0", "at most 100000"),
        ({"delayed_messages": {(0, 1, 0.5): 1.0}}, "(0, 1, 0.5): 1.0", "number of an operation"),
    ],
)
def test_impossible_faults_are_refused(arguments: dict[str, Any], value: str, limit: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        ep_lib.spawn(lambda rank: None, 4, "emulator", fabric=Fabric("rc", **arguments))
    assert next(iter(arguments)) in str(caught.value) and value in str(caught.value) and limit in str(caught.value)


def test_a_fabric_with_faults_can_be_compared_and_written_down() -> None:
    fabric = Fabric("rc", stopped_ranks={1: 3}, stalled_links={(0, 1, 2): math.inf})
    assert fabric == Fabric("rc", stopped_ranks={1: 3}, stalled_links={(0, 1, 2): math.inf}) != Fabric("rc")
    assert isinstance(hash(fabric), int)
    text = json.dumps(fabric.to_dict(), allow_nan=False)
    assert '"stopped_ranks": [[1, 3]]' in text and '"stalled_links": [[0, 1, 2, null]]' in text

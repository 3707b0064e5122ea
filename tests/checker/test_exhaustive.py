"""Exhaustive checks: every schedule of small programs, compared with plain enumeration, and what is said of them."""

from __future__ import annotations

import datetime
import os
import random
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_programs import KERNELS, PROGRAMS, kernel, program

import ep_lib
from ep_lib.emulator.exploration import CUT, NONE, SLEEPING, WHOLE, Exploration
from ep_lib.emulator.fabric import make_fabric
from ep_lib.emulator.machine import Launched
from ep_lib.runtime.differences import describe_launches
from ep_lib.runtime.emulated import make_machine, run_program
from ep_lib.runtime.exhaustion import RUNS, Estimate, Explored, Parts
from ep_lib.runtime.worker_processes import workers


def runs_of(name: str, reduction: int) -> tuple[set[str], set[int], int]:
    """Outcomes, classes of equivalent runs, and how many runs were made."""
    exploration = Exploration(events=300, turns=3, reduction=reduction)
    outcomes, classes, made, _ = some_runs(name, exploration)
    return outcomes, classes, made


def some_runs(name: str, exploration: Exploration, most: int = 1 << 30) -> tuple[set[str], set[int], int, bool]:
    """The same, and whether there are more."""
    outcomes, classes, made, more = set(), set(), 0, True
    while more and made < most:
        machine = make_machine(1, seed=0, fabric=make_fabric(None, 1), heap_bytes=1 << 16)
        machine.begin_checks()
        exploration.begin(machine)
        try:
            result = run_program(program, machine, (name, PROGRAMS[name]))
        except ep_lib.errors.EpError:
            result = []
        machine.end_checks()
        more = exploration.next()
        made += 1
        if exploration.status.outcome in (WHOLE, CUT):
            outcomes.add(repr(result))
            classes.add(exploration.status.equivalence)
    return outcomes, classes, made, more


def runs_in_parts(name: str) -> tuple[set[str], int, int]:
    """Outcomes, the number of classes and of runs, where a part is split as soon as it can be."""
    parts, outcomes = Parts(None), set()
    while not parts.is_done:
        for number in parts.round():
            exploration = Exploration(events=300, turns=3, reduction=SLEEPING)
            exploration.load(parts.text(number))
            some, _, made, more = some_runs(name, exploration, most=1)
            outcomes |= some
            status = exploration.status
            counts = (status.redundant, status.cut, status.counted, status.skipped, status.calm, status.most_events)
            parts.take(number, Explored(exploration.save(), not more, made, *counts))
    return outcomes, parts.explored, parts.totals.runs


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_reduction_loses_no_outcome_and_makes_few_runs(name: str) -> None:
    outcomes, classes, made = runs_of(name, SLEEPING)
    all_outcomes, all_classes, _ = runs_of(name, NONE)
    assert outcomes == all_outcomes
    assert made <= 1.2 * len(all_classes) + 1  # that a look is fruitless shows only afterwards
    assert len(classes) <= len(all_classes)
    in_parts, explored, made_in_parts = runs_in_parts(name)
    assert in_parts == all_outcomes and explored == len(classes)
    assert made_in_parts <= 1.2 * made + 4


def test_a_look_in_vain_is_also_tried_before_earlier_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has the lock second in the calm run may have it first; so may the third."""
    monkeypatch.setitem(PROGRAMS, "spin_lock", 3)
    outcomes, classes, _ = runs_of("spin_lock", SLEEPING)
    assert len(outcomes) == len(classes) == 6


def one_rank(rank: ep_lib.Rank, name: str, threads: int = 2) -> None:
    program(rank, name, threads)


def over_network(rank: ep_lib.Rank, name: str) -> int:
    data, flag, out = rank.symmetric(8, np.uint64), rank.symmetric(1, np.uint64), rank.to_device(np.zeros(1, np.uint64))
    kernel(name).launch(rank, 1, 1, data, flag, out)
    return int(rank.to_host(out)[0])


def stack(rank: ep_lib.Rank, threads: int, counts: bool) -> None:
    nodes, owners = rank.symmetric(8, np.uint32), rank.symmetric(8, np.uint32)
    if rank.rank == 0:
        nodes[:] = np.array([1, 2, 3, 0, 0, 0, 0, 0], np.uint32)
    rank.barrier()
    kernel("stack_of").launch(rank, 1, threads, nodes, owners, int(counts))


def exhausted(main: Any, ranks: int = 1, fabric: str | None = None, args: tuple[Any, ...] = (), **bounds: Any) -> Any:
    return ep_lib.check(main, ranks, fabric, args=args, exhaustive=True, heap_bytes=1 << 16, **bounds)


def test_it_says_what_it_has_covered() -> None:
    report = exhausted(one_rank, args=("dekker",))
    assert report.ok and report.coverage.complete
    assert str(report).startswith("all 7 inequivalent schedules, none of them wrong (1 rank on p2p") and report.proved
    assert shown(report.resume()) == shown(report)  # nothing is left
    few = exhausted(one_rank, args=("sequence_lock",), preemptions=0)
    assert str(few).startswith("within bounds: all with at most 0 preemptions: 2 schedules, none of them wrong")
    assert few.ok and few.coverage.skipped and not few.proved and not few.to_dict()["proved"]
    cut = exhausted(stack, args=(2, True), events=10, preemptions=0)
    assert cut.ok and not cut.proved and str(cut).startswith("NOT PROVED: ")
    assert " of them was cut off after 10 events" in str(cut) or " of them were cut off after 10 events" in str(cut)
    assert "and nothing wrong was met up to there" in str(cut) and "wrong (" not in str(cut)
    assert "load buffering" not in str(report)
    assert "load buffering" in str(exhausted(one_rank, args=("dekker",), memory="ptx", compare_values=False))
    assert few.to_dict()["coverage"]["preemptions"] == 0


@pytest.mark.parametrize("fabric", ["rc", "srd"])
def test_a_network_is_exhausted_too(fabric: str) -> None:
    assert exhausted(over_network, 2, fabric, ("put_and_signal",)).ok
    apart = exhausted(over_network, 2, fabric, ("put_then_signal",))
    assert apart.ok == (fabric == "rc")
    looks = exhausted(over_network, 2, fabric, ("look_while_it_comes",), compare_values=False)
    assert {f.kind for f in looks.findings} == {"race"}
    assert looks.coverage.complete and looks.coverage.schedules == 6


def test_later_seeds_take_lanes_in_every_order_and_looks_for_no_waits() -> None:
    def met(name: str) -> set[str]:
        seen: set[str] = set()

        def main(rank: ep_lib.Rank) -> None:
            seen.add(repr(program(rank, name, 3)[1][:3]))

        assert ep_lib.check(main, 1, seeds=range(100, 150), compare_values=False, memory="sc").ok
        return seen

    assert len(met("counter")) == 6
    assert "[0, 0, 0]" in met("coherent_reads")


@pytest.mark.extended
@pytest.mark.slow
def test_aba_is_found_and_its_story_is_short_and_replays() -> None:
    report = exhausted(stack, 2, args=(2, False), stop_at_first=True)
    (found,) = report.findings
    assert found.kind == "fault" and "__trap" in found.message
    assert len(found.schedule.split()) <= 3 and f'schedule="{found.schedule}"' in found.replay
    assert "stopped at the first finding" in str(report)
    recording = ep_lib.runtime.check.record(stack, 2, args=(2, False), schedule=found.schedule, heap_bytes=1 << 16)
    assert [f.finding.kind for f in recording.found] == ["fault"]


def test_a_counted_head_repairs_it() -> None:
    assert exhausted(stack, 1, args=(2, True)).coverage.complete


def test_a_lost_update_is_found() -> None:
    report = exhausted(program, args=("lost_update", 2))
    assert [f.kind for f in report.findings] == ["values differ"]
    assert "with this schedule than with the calm one" in str(report)


def test_what_seeds_find_gets_a_schedule_of_few_switches() -> None:
    def found(**options: Any) -> Any:
        return ep_lib.check(program, 1, seeds=20, args=("lost_update", 3), memory="sc", **options).findings[0]

    finding = found()
    assert finding.kind == "values differ" and len(finding.schedule.split()) == 1
    assert finding.schedule in finding.replay and "than with the calm one" in finding.message
    assert found(reduce=False).schedule is None
    recording = ep_lib.runtime.check.record(program, 1, args=("lost_update", 3), schedule=finding.schedule)
    assert [f.finding.kind for f in recording.found] == ["values differ"]


def test_a_wait_that_is_satisfied_only_in_some_schedules() -> None:
    report = exhausted(program, args=("waits_in_vain", 2), compare_values=False)
    assert [f.kind for f in report.findings] == ["deadlock"]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("name", ["waits_by_loads", "waits_by_adding", "waits_by_swapping"])
def test_older_values_that_a_wait_sees_make_no_schedules(name: str) -> None:
    """But for those that end it. The first of two values may be all that it sees, and the data may come later."""
    seen: set[tuple[int, ...]] = set()

    def main(rank: ep_lib.Rank) -> None:
        seen.add(tuple(program(rank, name, 2)[1][:2]))

    report = exhausted(main, memory="ptx", compare_values=False)
    assert report.proved and report.coverage.schedules < 10
    assert seen == {(1, 0), (1, 5), (2, 0), (2, 5)}


@pytest.mark.extended
@pytest.mark.slow
def test_lanes_that_wait_for_one_packet_make_one_schedule() -> None:
    """With two schedules for each lane, which may have looked before the packet came or not, there would be 2^32."""
    source = """
#include <ep/packet.cuh>
extern "C" __global__ void tell_all(ep::TaggedWord* box, uint64_t* out) {
    uint64_t data = 0;
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) ep::send_packet(box, 7, 1, 0);
    } else if (ep::wait_packet(box, 1, &data, {ep::kPhaseSignal, 0, 0})) {
        out[threadIdx.x] = data;
    }
}
"""

    def main(rank: ep_lib.Rank, lanes: int) -> None:
        box, out = rank.symmetric(2, np.uint64), rank.to_device(np.zeros(lanes, np.uint64))
        ep_lib.Kernel.from_source(source, "tell_all").launch(rank, 2, lanes, box, out)
        assert (rank.to_host(out) == 7).all()

    for memory, lanes in (("sc", 32), ("ptx", 4)):
        report = ep_lib.check(main, 1, args=(lanes,), exhaustive=True, memory=memory)
        assert report.proved and report.coverage.schedules == 1, memory


@pytest.mark.parametrize(("name", "memory"), [("step_aside", "sc"), ("step_aside", "ptx"), ("two_locks", "sc")])
def test_two_that_step_aside_for_ever_are_named(name: str, memory: str) -> None:
    report = exhausted(one_rank, args=(name,), stop_at_first=True, memory=memory)
    (found,) = report.findings
    assert found.kind == "livelock" and "block 0 thread 0 and rank 0 block 0 thread 1 repeat 6 steps" in found.message
    claims = {"step_aside": "st_relaxed_sys_u32(x + ME, 1)", "two_locks": "atom_cas_relaxed_sys_u32(x + ME, 0, 1)"}
    assert found.message.count(claims[name]) == 2  # of each
    assert len(found.schedule.split()) <= 3 and "insist" in found.remedy
    again = ep_lib.runtime.check.record(
        one_rank, 1, args=(name,), schedule=found.schedule, heap_bytes=1 << 16, memory=memory
    )
    assert [f.finding.kind for f in again.found] == ["livelock"]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("memory", ["sc", "ptx"])
@pytest.mark.parametrize("name", ["one_steps_aside", "two_locks_with_patience"])
def test_who_steps_aside_until_the_other_is_done_is_proved(name: str, memory: str) -> None:
    assert exhausted(one_rank, args=(name,), memory=memory).proved


def test_a_heart_that_beats_for_a_block_that_is_not_resident() -> None:
    def main(rank: ep_lib.Rank) -> None:
        x, out = rank.to_device(np.zeros(8, np.uint32)), rank.to_device(np.zeros(8, np.uint32))
        kernel("beats").launch(rank, 2, 1, x, out)

    assert exhausted(main).proved
    (found,) = exhausted(main, resident_blocks=1).findings
    assert found.kind == "livelock" and "thread 0 repeats 3 steps" in found.message
    assert "blocks that are not resident, and run only when one of these ends: 1" in found.message


def test_a_kernel_that_reads_a_clock_is_named_and_not_proved() -> None:
    report = exhausted(one_rank, args=("asks_the_clock",))
    source = KERNELS.read_text().splitlines()
    lines = [source[int(spot.rpartition(":")[2]) - 1] for spot in report.coverage.clocks]
    assert report.ok and not report.proved and ["clock" in line for line in lines] == [True, True]
    assert str(report).startswith("within bounds: all 1 ") and " a clock is read at " in str(report)


@pytest.mark.parametrize(("warps", "proved"), [(2, True), (4, False)])
def test_who_meets_at_a_barrier_by_number_is_one_choice(warps: int, proved: bool) -> None:
    source = "__global__ void meet(int* out) { __barrier_sync_count(1, 64); if (!threadIdx.x) *out = 1; }"

    def main(rank: ep_lib.Rank) -> None:
        meet = ep_lib.Kernel.from_source(source, "meet")
        meet.launch(rank, 1, 32 * warps, rank.to_device(np.zeros(1, np.int32)))

    report = exhausted(main)
    assert report.ok and report.proved is proved
    assert proved or "more warps come to the barrier by number at <kernel>:1 than it takes" in str(report)


def busy_wait(rank: ep_lib.Rank, early: bool, logs: bool) -> list[int]:
    data, out = rank.symmetric(20, np.uint64), rank.symmetric(1, np.uint64)
    rank.barrier()
    kernel("busy_wait").launch(rank, 1, 1, data, out, int(early), int(logs))
    return [int(value) for value in rank.to_host(out)]


@pytest.mark.parametrize("logs", [False, True])
def test_others_run_while_a_thread_waits_and_stores(logs: bool) -> None:
    """A heartbeat or a log in each turn: the thread never comes back to its state."""
    right = exhausted(busy_wait, 2, args=(False, logs))
    assert right.ok and right.coverage.cut == 0 and "12 where they store something" in str(right)
    wrong = exhausted(busy_wait, 2, args=(True, logs), turns=2, compare_values=False)
    assert {f.kind for f in wrong.findings} == {"race"}
    for schedule in (wrong.findings[0].schedule, "t2"):  # with as many turns
        recording = ep_lib.runtime.check.record(busy_wait, 2, args=(True, logs), schedule=schedule, heap_bytes=1 << 16)
        assert "race" in [f.finding.kind for f in recording.found]


@pytest.mark.extended
def test_it_stops_in_time_and_goes_on() -> None:
    first = exhausted(stack, 1, args=(3, True), seconds=0.001, preemptions=1)
    assert "stopped after 0.001 s" in first.coverage.stopped and not first.coverage.complete
    more = first.resume()
    assert re.match(r"NOT PROVED: \d+ inequivalent schedules?; stopped after 0.001 s", str(first))
    assert more.coverage.complete == (not more.coverage.skipped) and more.coverage.schedules > first.coverage.schedules


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("name", "threads", "whole"),
    [("lost_update", 4, 576), ("cas_loop", 3, 48), ("sequence_lock", 3, 196), ("dekker", 2, 7), ("spin_lock", 3, 6)],
)
def test_random_runs_tell_how_many_schedules_there_are(
    monkeypatch: pytest.MonkeyPatch, name: str, threads: int, whole: int
) -> None:
    monkeypatch.setitem(PROGRAMS, name, threads)
    estimate = Estimate()
    for seed in range(100):
        exploration = Exploration(events=300, turns=3)
        exploration.draw(seed)
        some_runs(name, exploration)
        estimate.add(exploration.status.whole)
    if name == "spin_lock":  # most of its random runs only poll, so there is no estimate
        assert estimate.whole is None
    else:
        assert estimate.whole is not None and whole / 2 < estimate.whole < 2 * whole


def test_an_estimate_is_said_from_the_first_tenth_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ep_lib.runtime.exhaustive, "_ALONE_SECONDS", 0.0)
    monkeypatch.setattr(ep_lib.runtime.exhaustive, "_DRAWN_SHARE", 1e9)
    report = exhausted(program, args=("lost_update", 4), compare_values=False, seconds=1e-6)
    for _ in range(30):
        report = report.resume(seconds=1e-6)
    true = report.coverage.schedules / 576
    assert true / 3 < report.coverage.share < 3 * true < 1
    assert re.match(r"NOT PROVED: \d+ inequivalent schedules of perhaps [567]00; stopped", str(report))
    wrong = exhausted(program, args=("lost_update", 4), seconds=1e-6)  # the search has not come to it yet
    assert wrong.coverage.stopped and [f.kind for f in wrong.findings] == ["values differ"] and wrong.values_differ


def shown(report: Any) -> dict[str, Any]:
    return {name: value for name, value in report.to_dict().items() if name != "seconds"}


@pytest.mark.slow
def test_the_report_is_the_same_whatever_the_number_of_workers() -> None:
    alone = exhausted(program, args=("lost_update", 3))
    assert alone.coverage.schedules > 2 * RUNS and [f.kind for f in alone.findings] == ["values differ"]
    assert shown(exhausted(program, args=("lost_update", 3), jobs=2)) == shown(alone)


@pytest.mark.slow
def test_a_stopped_worker_keeps_nobody_waiting_after_the_end() -> None:
    asked = {"args": ("lost_update", 3), "compare_values": False}
    with workers(2) as executor:
        stopped = executor._pids[0]
        os.kill(stopped, signal.SIGSTOP)
        report = exhausted(program, **asked, executor=executor, seconds=2)
    assert "stopped after 2 s; up to 16 schedules of a" in report.coverage.stopped
    assert f"no worker has answered; process {stopped} is stopped" in report.coverage.stopped
    assert shown(report.resume()) == shown(exhausted(program, **asked))


@pytest.mark.parametrize(("name", "compares"), [("lost_update", True), ("cas_loop", False)])
def test_it_goes_on_however_often_it_was_stopped(name: str, compares: bool) -> None:
    """After each run, here."""
    whole = exhausted(program, args=(name, 3), compare_values=compares)
    one, calls = exhausted(program, args=(name, 3), compare_values=compares, seconds=1e-6), 1
    assert "stopped after 1e-06 s" in one.coverage.stopped
    while one.coverage.stopped:
        one, calls = one.resume(seconds=1e-6), calls + 1
    assert calls > 30
    assert (one.coverage.schedules, one.proved) == (whole.coverage.schedules, whole.proved)
    assert [(f.kind, f.message) for f in one.findings] == [(f.kind, f.message) for f in whole.findings]
    assert shown(one.resume()) == shown(one)  # nothing was left


def test_it_goes_on_after_an_interrupt_before_the_first_run() -> None:
    turn = iter(range(100))

    def main(rank: ep_lib.Rank) -> None:
        if next(turn) == 0:
            raise KeyboardInterrupt
        one_rank(rank, "counter")

    first = exhausted(main)
    assert "interrupt" in first.coverage.stopped and not first.coverage.schedules
    assert first.resume().proved


def test_any_executor_makes_the_runs() -> None:
    class Here(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    report = exhausted(one_rank, args=("dekker",), executor=Here())
    assert report.ok and report.coverage.schedules == 7
    with pytest.raises(ep_lib.errors.KernelNotFoundError):
        exhausted(one_rank, args=("no_such_kernel",), executor=Here())


GENERATOR = np.random.default_rng(5)
SOURCES: dict[str, Callable[[], Any]] = {
    "os.urandom": lambda: os.urandom(1)[0],
    "perf_counter": lambda: int(time.perf_counter() * 1e6),
    "time": lambda: int(time.time()) // 86_400,  # the same for all of the check
    "now": lambda: datetime.datetime.now().year,
    "random": lambda: random.randrange(1, 4),
    "np.random": lambda: np.random.randint(1, 4),
    "default_rng": lambda: np.random.default_rng().integers(1, 4),
    "Random()": lambda: random.Random().getrandbits(2),
    "uuid": lambda: uuid.uuid4().int % 3,
    "a generator that goes on": lambda: GENERATOR.integers(1, 1 << 40),
    "id": lambda: id(object()) & 1,
    "a file": lambda: Path(__file__).stat().st_size + len(Path(__file__).read_text()),
    "a thread": lambda: threading.Thread(target=print, args=("",)).start() or 1,
}
SEEDED: dict[str, Callable[[], Any]] = {
    "random": lambda: (random.seed(3), random.randrange(3))[1],
    "np.random": lambda: (np.random.seed(3), np.random.randint(3))[1],
    "default_rng": lambda: np.random.default_rng(3).integers(3),
    "Random": lambda: random.Random(3).random() > 0.5,
    "own address": lambda: sum({1, 2, 3}),
}


def launching(asks: Callable[[], Any]) -> Callable[[ep_lib.Rank], None]:
    def main(rank: ep_lib.Rank) -> None:
        number = int(asks()) % 2**31
        out = rank.to_device(np.array([number, 0, 0, 0], np.uint32))
        kernel("counter").launch(rank, 1, 2, out, rank.to_device(np.zeros(8, np.uint32)))

    return main


@pytest.mark.parametrize("name", SOURCES)
def test_what_may_be_otherwise_in_another_run_is_not_proved(name: str) -> None:
    try:
        report = exhausted(launching(SOURCES[name]))
    except ep_lib.errors.ArgumentError as error:
        said = str(error)
        assert "does not do the same in every run" in said
    else:
        assert report.ok and not report.proved
        said = str(report)
        assert said.startswith("NOT PROVED: ")
    assert "test_exhaustive.py:" in said or "numpy.random" in said or "of random" in said or "goes on" in name


@pytest.mark.parametrize("name", SEEDED)
def test_what_is_seeded_is_proved(name: str) -> None:
    report = exhausted(launching(SEEDED[name]))
    assert report.proved and not report.coverage.asked


def test_two_launches_of_the_calm_run_that_differ_are_told() -> None:
    turn = iter(range(100))

    def main(rank: ep_lib.Rank) -> None:
        x, out = (rank.to_device(np.zeros(8, np.uint32)) for _ in range(2))
        kernel("counter").launch(rank, 1, 1 + next(turn), x, out)

    with pytest.raises(ep_lib.errors.ArgumentError, match=r"rank 0 launched 'counter' with grid.*\(2, 1, 1\)"):
        exhausted(main)


def test_a_program_that_is_not_the_same_each_time() -> None:
    turn = iter(range(100))

    def main(rank: ep_lib.Rank) -> None:
        program(rank, ("store_buffering", "counter")[next(turn) % 2], 2 + next(turn) % 4)

    with pytest.raises(ep_lib.errors.ArgumentError, match="does not do the same in every run"):
        exhausted(main)


def test_a_result_that_is_not_the_same_in_the_calm_schedule() -> None:
    turn = iter(range(100))

    def main(rank: ep_lib.Rank) -> int:
        program(rank, "lost_update", 2)
        return next(turn)

    with pytest.raises(ep_lib.errors.ArgumentError, match="the calm schedule, run twice, gave two results"):
        exhausted(main)


TWO_KERNELS = """
#include <ep/memory.cuh>
extern "C" __global__ void prepare(uint32_t* x) { ep::atom_add_relaxed_sys_u32(x, threadIdx.x + 1); }
extern "C" __global__ void update(uint32_t* x) {
    const uint32_t seen = ep::ld_relaxed_sys_u32(x);
    ep::st_relaxed_sys_u32(x, seen + 1);
}
"""


def two_kernels(rank: ep_lib.Rank) -> int:
    x = rank.to_device(np.zeros(1, np.uint32))
    for name in ("prepare", "update"):
        ep_lib.Kernel.from_source(TWO_KERNELS, name).launch(rank, 1, 3 if name == "prepare" else 1, x)
    return int(rank.to_host(x)[0])


def test_the_schedules_of_one_kernel_alone() -> None:
    whole = exhausted(two_kernels)
    assert whole.proved and whole.coverage.schedules == 6 and not whole.coverage.kernels
    first = exhausted(two_kernels, kernels="prepare")
    assert first.proved and first.coverage.schedules == 6  # nothing was left out
    other = exhausted(two_kernels, kernels=["update"])
    assert other.ok and not other.proved and other.coverage.schedules == 1 and other.coverage.calm
    assert str(other).startswith("within bounds: all 1 inequivalent schedule; of update (a bound): other kernels ran")
    with pytest.raises(ep_lib.errors.ArgumentError, match=r"kernels names updat, which .* launched prepare, update"):
        exhausted(two_kernels, kernels=["prepare", "updat"])


@pytest.mark.parametrize(
    ("line", "says"),
    [("99:1", r"decision 99 does not exist: this run has \d+"), ("0:77", "decision 0 has no option 77")],
)
def test_a_schedule_that_does_not_fit_is_said(line: str, says: str) -> None:
    with pytest.raises(ep_lib.errors.ArgumentError, match=says):
        ep_lib.runtime.check.record(program, 1, args=("lost_update", 2), schedule=line)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"preemptions": 2}, "bounds of an exhaustive check: add exhaustive=True"),
        ({"kernels": "prepare"}, "bounds of an exhaustive check: add exhaustive=True"),
        ({"exhaustive": True, "kernels": 3}, "kernels is 3"),
        ({"exhaustive": True, "kernels": [3]}, "kernels is 3"),
        ({"exhaustive": True, "preemptions": -1}, "preemptions is -1"),
        ({"exhaustive": True, "events": 3}, "events is 3"),
        ({"exhaustive": True, "turns": 0}, "turns is 0"),
        ({"exhaustive": True, "seconds": -1}, "seconds is -1"),
        ({"exhaustive": 2}, "exhaustive is 2"),
        ({"jobs": 2}, "for an exhaustive check: add exhaustive=True"),
        ({"exhaustive": True, "jobs": 0}, "jobs is 0"),
    ],
)
def test_bad_bounds(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ep_lib.errors.ArgumentError, match=says):
        ep_lib.check(one_rank, 1, args=("dekker",), **options)


def test_a_schedule_that_is_none() -> None:
    with pytest.raises(ep_lib.errors.ArgumentError, match="take the line that a finding"):
        ep_lib.runtime.check.record(one_rank, 1, args=("dekker",), schedule="5")


@pytest.mark.parametrize(
    ("parameters", "one", "other", "differs"),
    [
        ("0 0 4 data", (139900640880736, 7), (833041696, 7), ""),  # behind a program that is not moved about
        ("0 0 4 data", (139900640880736, 7), (0, 7), "argument 'data'"),
        ("0 0 4 data", (139900640880736, 7), (139900640880736, 8), "argument 2 7 and then 8"),
        ("", (0x7F0011112222, 7), (0x7F0033334444, 7), ""),
    ],
)
def test_a_launch_differs_by_more_than_where_arrays_are(
    parameters: str, one: tuple[int, ...], other: tuple[int, ...], differs: str
) -> None:
    runs = [
        [Launched(0, "k", (1, 1, 1), (1, 1, 1), tuple(a.to_bytes(8, "little") for a in args), parameters)]
        for args in (one, other)
    ]
    said = describe_launches(*runs)
    assert differs in said and bool(said) == bool(differs)


@pytest.mark.parametrize(("second", "differs"), [(833041696, False), (3, True)])
def test_a_struct_with_an_array_in_it_may_lie_elsewhere(second: int, differs: bool) -> None:
    first, count = 139900640880736, (5).to_bytes(8, "little")
    runs = [
        [Launched(0, "k", (1, 1, 1), (1, 1, 1), (word.to_bytes(8, "little") + count,), "")] for word in (first, second)
    ]
    assert bool(describe_launches(*runs)) == differs

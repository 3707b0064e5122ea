"""What the checker says of mistakes as learners make them: the right two lines, and the right cause in plain words."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import TESTS

import ep_lib
from ep_lib import Kernel, Rank

pytestmark = pytest.mark.slow

FILE = TESTS / "wrong_variants" / "told.cu"
TEXT = FILE.read_text()
SEEDS = 10


class Told(NamedTuple):
    """``says`` are in what the finding tells (detail, remedy and place), with lines as {A}, {B} and so on, by comments
    in the kernel; ``not_said`` must not be. ``lines``: whether the finding has the lines A and B as its two sides."""

    kernel: str
    says: tuple[str, ...]
    not_said: tuple[str, ...] = ()
    ranks: int = 1
    blocks: int = 1
    fabric: str = "p2p"
    kind: str = "race"
    launches: int = 1
    fill: int = 1
    lines: bool = True


OUTSIDE = "all threads of the block must reach it"
ONE_BLOCK = [
    Told("two_lanes_own_one_place", ("a place of its own for each thread", "index in line {A}"), ("__sync", "again")),
    Told("lanes_write_half_the_places", ("a place of its own for each thread", "index in line {A}"), ("__sync",)),
    Told("tile_refilled_too_early", ("__syncthreads() after line {B}", "before line {A} runs again"), ("between",)),
    Told(
        "branches_hand_over",
        ("line {A} and line {B}", "in different branches", "no barrier fits"),
        ("put __sync.* betw",),
    ),
    Told("one_thread_reads_in_a_branch", ("between line {A} and line {B}", OUTSIDE), ("again",)),
    Told(
        "warps_hand_over_by_a_volatile_flag",
        ("without release", "__threadfence_block() is enough", "in line {S}"),
        ("__syncthreads",),
    ),
    Told(
        "two_warps_and_a_bare_lock",
        ("both hold the lock", "__threadfence_block()", "taken in line {take}, given back in line {give}"),
        ("__syncthreads", "atomic operation"),
    ),
    Told("tree_without_barriers", ("__syncwarp() after line {A}", "before it runs again")),
    Told("wrong_half_of_a_double_buffer", ("after line {B}", "before line {A} runs again"), ("between",)),
    Told("syncwarp_between_warps", ("missing __syncthreads", "does not hold all threads"), ("again",)),
    Told("shuffle_taken_for_a_barrier", ("__syncwarp", "between line {A} and line {B}"), ("again",)),
    Told("barrier_in_a_branch", ("line {A} and line {B}", "one barrier"), kind="divergent barrier"),
    Told("barrier_for_some_lanes", ("every thread that a barrier or a mask names",), kind="deadlock", lines=False),
    Told(
        "ring_in_shared_without_empty",
        ("credit", "before line {A} of", "after line {B}"),
        ("__sync",),
        kind="slot reused",
    ),
    Told("histogram_without_atomics", ("one atomic operation", "line {A}"), ("__sync",)),
    Told(
        "waits_in_front_of_its_own_barrier",
        ("barrier in line {barrier}", "line {wait}", "no line behind that barrier can store it", "wait after it"),
        kind="deadlock",
        lines=False,
    ),
    Told(
        "counter_that_passed_its_value",
        ("it was 2 until line {add}", "made it 3", "wait for >=", "line {A}"),
        kind="deadlock",
        lines=False,
    ),
    Told(
        "tma_row_filled_again",
        ("tma_wait_read() after line {A}", "before line {B} of", "runs again"),
        ("__syncwarp",),
        kind="source reused",
    ),
    Told(
        "tma_wait_always_for_phase_0",
        ("an earlier round", "then 1, 0, 1", "line {wait}"),
        ("__syncwarp",),
        kind="read before arrival",
        lines=False,
    ),
]
BLOCKS = [
    Told("one_side_takes_the_lock", ("the other does not take it", "lock of line {take} of", "before line {B}")),
    Told("cleared_beside_atomics", ("__sync", "between line {A} and line {B}"), ("signal",)),
    Told("atomic_of_a_block_between_blocks", ("scope: gpu is the smallest",), ("system",), kind="scope"),
    Told("plain_counter_of_the_grid", ("one atomic operation", "line {A}"), ("lock",)),
    Told(
        "lock_without_fences",
        ("both hold the lock", "__threadfence()", "given back in line {give}"),
        ("one atomic",),
    ),
    Told(
        "lock_without_acquire",
        ("taken without acquire", "take the lock with acquire", "line {take}"),
        ("one atomic",),
    ),
    Told("lock_without_release", ("given back without release", "line {give}"), ("one atomic",)),
    Told("ticket_lock_without_fences", ("both hold the lock", "given back in line {give}"), ("one atomic",)),
    Told("fence_of_a_block_between_blocks", ("use __threadfence() in line {narrow}", "smallest"), (" lock",)),
    Told("last_block_without_a_fence", ("without release", "in line {count}", "__threadfence() is enough")),
    Told("grid_barrier_without_a_fence", ("without release", "__threadfence() is enough")),
    Told(
        "fence_before_the_barrier",
        ("the fence comes before the barrier", "__threadfence() behind the barrier", "line {count}"),
    ),
    Told(
        "volatile_sum_under_a_bare_lock",
        ("both hold the lock", "given back in line {give}", "__threadfence()"),
        ("one atomic",),
        kind="volatile",
    ),
    Told(
        "locks_in_both_orders",
        ("a circle", "waits for the lock that rank 0 block 0 thread 0 holds, taken in line {first}", "one order"),
        kind="deadlock",
        lines=False,
    ),
    Told(
        "waits_for_what_no_block_gives",
        ("no thread has stored to what", "line {A}", "must come: a signal"),
        ("line {S}", "circle"),
        kind="deadlock",
        lines=False,
    ),
    Told(
        "lock_never_given_back",
        ("ended without giving it back", "give back what line {A}"),
        kind="deadlock",
        lines=False,
        fill=0,
    ),
]
PEERS = [
    Told("misaligned_put_after_its_signal", ("signal (line {S} of", "after the data (line {A} of"), ranks=2),
    Told("fence_of_a_gpu_towards_a_peer", ("use __threadfence_system() in line {narrow}", "on another rank")),
    Told("reader_fences_too_narrowly", ("use __threadfence_system() in line {narrow}",)),
    Told("reads_before_it_waits", ("before line {B}",), ("runs again",)),
    Told(
        "opening_barrier_only", ("wait for the signal of line {S}", "before line {B}"), ("not before", "missing __sync")
    ),
    Told("signal_before_the_data", ("signal (line {S}", "after the data (line {A}")),
    Told("stale_epoch", ("launch 1 stored; this is launch 2", "line {wait}", "epoch"), launches=2),
    Told("epoch_waits_for_the_one_before", ("an earlier round", "line {wait}")),
    Told("waits_for_a_value_that_passed", ("it was 1 until line {S}", "wait for >="), kind="deadlock", lines=False),
    Told("everyone_waits_first", ("a circle", "line {A}", "signal first"), ranks=3, kind="deadlock", lines=False),
    Told(
        "everyone_waits_first_with_a_limit",
        ("a circle", "line {A}", "signal first", "the signal (line {S})"),
        ranks=3,
        kind="timeout",
        lines=False,
    ),
    Told("credit_before_the_read", ("give the credit (line {S}", "after the read (line {B}"), kind="slot reused"),
    Told("credit_before_the_others_read", ("missing __syncthreads between the read and its credit", "follow it")),
    Told("one_credit_too_many", ("in line {wait} of", "for one credit more", "line {A}"), kind="slot reused"),
    Told("lane_signals_before_its_warp_writes", ("give it after line {A}", "with __syncwarp() between them")),
    Told("two_ranks_own_one_place", ("a place of its own for each writer", "line {A}")),
    Told("spins_on_a_plain_load", ("release where it is set", "in line {B}"), ("put_signal",)),
    Told(
        "exchange_without_credit",
        ("before line {A} of", "wait for a credit that the reader gives after line {B}"),
        ("give the credit",),
        kind="slot reused",
    ),
    Told("relaxed_flag_then_data", ("without release", "line {S}", "__threadfence_system() is enough")),
]
NICS = [
    Told("put_of_what_a_block_writes", ("wait for line {A}", "before line {B}"), ("quiet",), blocks=2),
    Told("get_of_what_a_put_brings", ("before the get", "line {B}"), ("sent on",), ranks=3),
    Told("added_by_nic_and_by_gpu", ("only one kind", "line {A}", "line {B}"), kind="staged atomic"),
    Told("put_then_bare_signal", ("a quiet (or a fence) between line {A} and line {S}",), kind="signal overtakes data"),
    Told("quiet_before_the_put", ("between line {A} and line {S}",), kind="signal overtakes data"),
    Told("fence_is_no_quiet", ("a quiet between line {A} and line {B}",), kind="source reused"),
    Told("get_read_at_once", ("a quiet between line {A} and line {B}",), kind="read before arrival"),
    Told("get_of_a_counter_that_is_set", ("before line {B}", "is posted"), ("put_signal",)),
    Told("owner_writes_where_a_put_lands", ("line {A} and line {B}", "write the same place"), ("before the read",)),
    Told("two_puts_into_one_place", ("quiet or fence between line {A} and line {B}",), ("again",)),
    Told("put_of_what_others_write", ("__syncthreads() between line {A} and line {B}",)),
    Told("slot_without_credit", ("before line {A} of", "gives after line {B}"), kind="slot reused"),
    Told("signal_of_another_put", ("between line {A} and line {S}",), kind="signal overtakes data"),
    Told("relay_without_waiting", ("before it is sent on", "line {B}"), ranks=3),
    Told("get_then_put_of_one_word", ("quiet between line {A} and line {B}",), fabric="rc", kind="source reused"),
    Told(
        "put_and_signal_on_two_queue_pairs",
        ("the fence between the two orders one queue pair", "a quiet between line {A} and line {S}"),
        fabric="rc",
        kind="signal overtakes data",
    ),
    Told(
        "quiet_for_another_rank",
        ("is for rank", "one more quiet for the rank of the put in line {quiet}"),
        ranks=3,
        kind="signal overtakes data",
    ),
    Told("lanes_fill_while_lane_0_posts", ("put __syncwarp() between line {A} and line {B}",)),
    Told("lanes_read_while_lane_0_waits", ("put __syncwarp() between line {wait} and line {B}",)),
    Told("get_not_complete_when_the_owner_hears", ("a quiet between line {A} and line {done}",), kind="source reused"),
    Told("all_senders_into_one_slot", ("a place of its own for each sender",), ranks=3),
    Told("poll_the_data_itself", ("a signal of its own", "line {B}"), fabric="rc", fill=0),
]
ALL = [
    *ONE_BLOCK,
    *(t._replace(blocks=2) for t in BLOCKS),
    *(t._replace(ranks=max(2, t.ranks)) for t in PEERS),
    *(t._replace(ranks=max(2, t.ranks), fabric=t.fabric if t.fabric == "rc" else "srd") for t in NICS),
]


def main(rank: Rank, told: Told) -> Any:
    data, flag = rank.symmetric(1024, np.int32, fill=told.fill), rank.symmetric(16, np.uint64)
    out = rank.to_device(np.zeros(256, np.int32))
    for launch in range(1, told.launches + 1):
        Kernel.from_file(FILE, told.kernel).launch(rank, told.blocks, 64, data, flag, out, 64, launch)
    return rank.to_host(out)


def lines_of(kernel: str) -> dict[str, int]:
    """The lines of a kernel by the words of their comments: "// A B" names a line twice."""
    begin = TEXT.index(f" void {kernel}(")
    body = TEXT[begin : TEXT.index("\n}\n", begin)]
    first = TEXT.count("\n", 0, begin) + 1
    found: dict[str, int] = {}
    for number, line in enumerate(body.split("\n"), first):
        for word in line.partition("//")[2].split():
            found.setdefault(word, number)
    return found


@pytest.mark.parametrize("told", ALL, ids=[told.kernel for told in ALL])
def test_a_learner_reads_the_two_lines_and_the_cause(told: Told) -> None:
    report = ep_lib.check(
        main,
        told.ranks,
        told.fabric,
        SEEDS,
        (told,),
        compare_values=False,
        heap_bytes=1 << 20,
        timeout=30,
        volatile="plain",
    )
    lines = lines_of(told.kernel)
    [finding] = [f for f in report.findings if f.kind == told.kind][:1] or pytest.fail(f"not found:\n{report}")
    text = " ".join(("" if told.lines else finding.message, finding.detail, finding.remedy, finding.place))
    for words in told.says:
        assert words.format(**lines) in text, f"{words.format(**lines)!r} is not in\n{finding}"
    for words in told.not_said:
        assert not re.search(words.format(**lines), text), f"{words!r} is in\n{finding}"
    if told.lines:
        assert finding.first is not None and finding.second is not None
        sides = {int(re.sub(r" \(in .*", "", s.location).rpartition(":")[2]) for s in (finding.first, finding.second)}
        assert sides == {lines["A"], lines["B"]}, str(finding)


@pytest.mark.extended
def test_a_story_of_many_switches_takes_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a finding needs all of its switches, that is not told by one run for each."""
    reduced: list[Any] = []
    runs: list[Any] = []
    reduce, try_next = ep_lib.runtime.reduce.reduce_schedule, ep_lib.runtime.search.Search.try_next
    monkeypatch.setattr(
        ep_lib.runtime.reduce, "reduce_schedule", lambda *given: (reduced.append(given), reduce(*given))[1]
    )
    told = next(each for each in ALL if each.kernel == "relay_without_waiting")
    ep_lib.check(main, 3, "rc", SEEDS, (told,))
    program, finding, most = reduced[0]
    assert most == SEEDS
    monkeypatch.setattr(
        ep_lib.runtime.search.Search, "try_next", lambda *given: (runs.append(given), try_next(*given))[1]
    )
    schedule = " ".join(f"{decision}:1" for decision in range(64))
    shown_by_none = dataclasses.replace(finding, kind="of no run", schedule=schedule, first=None)
    assert reduce(program, shown_by_none, most).schedule == schedule and len(runs) == SEEDS + 2 * 7


def test_a_kernel_that_still_works_is_not_told_to_wait() -> None:
    told = Told("works_too_long", ())
    report = ep_lib.check(main, 1, "p2p", 1, (told,), heap_bytes=1 << 20, timeout=0.5)
    [finding] = report.findings
    assert finding.kind == "timeout" and "all threads still compute" in finding.remedy, str(report)

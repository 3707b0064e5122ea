"""The checker has a word for every mistake of wrong_variants/, and says it once."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, simple_exchange
from support.dispatch_combine_cases import make_case
from support.write_signal import broken, kernel, pipeline, ring
from wrong_variants import variants

import ep_lib
from ep_lib import Rank

pytestmark = pytest.mark.slow

BY_NAME = {variant.name: variant for variant in variants.VARIANTS}
MANY_SEEDS = 200


def names_remedy(report: ep_lib.CheckReport, word: str) -> bool:
    return any(word in f.remedy + f.detail for f in report.findings)


def report_of(name: str, seeds: int = 20, **more: Any) -> ep_lib.CheckReport:
    variant = BY_NAME[name]
    more = {"compare_values": False, "timeout": 20, **more}
    return ep_lib.check(variants.run, 2, variant.fabric, seeds, (name, variant.blocks), **more)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_mistake_is_flagged(name: str) -> None:
    variant = BY_NAME[name]
    report = report_of(name, MANY_SEEDS, stop_at_first=True)
    assert {f.kind for f in report.findings} & set(variant.kinds), str(report)
    if not names_remedy(report, variant.remedy):  # the first pair of threads to meet is not always the telling one
        report = report_of(name)
    assert names_remedy(report, variant.remedy), str(report)


@pytest.mark.parametrize(
    ("send", "receive", "remedy"),
    [
        ("write_signal_thread_reversed", "wait_and_read", "data before its signal"),
        ("write_signal_warp_short", "wait_and_read", "missing __syncwarp"),
        ("write_signal_warp", "read_without_wait", "release/acquire"),
    ],
)
def test_broken_tutorial_kernels_are_flagged(send: str, receive: str, remedy: str) -> None:
    pair = [kernel(n) if n in ("wait_and_read", "write_signal_warp") else broken(n) for n in (send, receive)]
    report = ep_lib.check(ring, 2, seeds=20, args=(*pair, 2048), stop_at_first=True)
    finding = report.findings[0]
    assert finding.kind == "race" and remedy in finding.remedy, str(report)
    for side in (finding.first, finding.second):
        assert side is not None and ".cu:" in side.location and side.source and side.kernel
    replayed = ep_lib.check(ring, 2, seeds=[finding.seed], args=(*pair, 2048))
    assert replayed.findings[0].key == finding.key


@pytest.mark.parametrize(
    ("send", "receive", "kind"),
    [
        ("pipelined_send_without_credits", "pipelined_receive", "slot reused"),
        ("pipelined_send", "pipelined_receive_early_credit", "slot reused"),
        ("pipelined_send", "pipelined_receive_without_credit", "timeout"),
    ],
)
def test_broken_pipelines_are_flagged(send: str, receive: str, kind: str) -> None:
    pair = [kernel(n) if n in ("pipelined_send", "pipelined_receive") else broken(n) for n in (send, receive)]
    report = ep_lib.check(pipeline, 2, seeds=20, args=(*pair, 160, 2, 20), stop_at_first=True)
    assert kind in {f.kind for f in report.findings}, str(report)
    if kind != "timeout":
        report = ep_lib.check(pipeline, 2, seeds=20, args=(*pair, 160, 2, 20))
        assert report.findings[0].kind in (kind, "race") and "credit" in report.findings[0].remedy, str(report)


# ---- reports -------------------------------------------------------------------------------------------------------
def test_a_clean_report_says_what_it_does_not_prove() -> None:
    runs: list[int] = []

    def main(rank: ep_lib.Rank) -> None:
        runs.append(rank.rank)
        variants.run(rank, "exchange", 1)

    report = ep_lib.check(main, 2, seeds=3)
    assert report.ok and report.seeds == (0, 1, 2) and not report.values_differ
    assert sorted(runs) == [0, 0, 0, 1, 1, 1], "where nothing is found there is no schedule to look for"
    assert "proves nothing" in str(report) and "3 schedules of 2 ranks" in str(report)


def test_it_says_how_the_schedules_were_made() -> None:
    report = ep_lib.check(variants.run, 2, seeds=10, args=("exchange", 1))
    assert (report.random_walks, report.pct) == (5, {1: 2, 2: 1, 3: 1, 4: 1})
    assert "10 schedules of 2 ranks on p2p (5 random walks and 5 by priorities (PCT, depth 1 to 4); " in str(report)
    report = ep_lib.check(variants.run, 2, seeds=[3, 11], args=("exchange", 1))
    assert (report.random_walks, report.pct) == (0, {2: 2}) and "(2 by priorities (PCT, depth 2); " in str(report)


@pytest.mark.parametrize("kind", ["p2p", "rc", "srd"])
def test_each_way_of_making_schedules_finds_mistakes_and_replays_them(kind: str) -> None:
    name = "no credit" if kind == "p2p" else "no credit over the network"
    for first in (0, 1):
        found = ep_lib.check(variants.run, 2, kind, seeds=range(first, 40, 2), args=(name, 1), stop_at_first=True)
        assert not found.ok and len(found.seeds) <= 20
        texts = [str(ep_lib.check(variants.run, 2, kind, [found.seeds[-1]], (name, 1))) for _ in range(2)]
        assert re.sub(r"[\d.]+ s\)", "", texts[0]) == re.sub(r"[\d.]+ s\)", "", texts[1])
        for finding in found.findings:
            assert finding.message in texts[0]


def test_an_exception_that_follows_from_a_race_does_not_hide_it() -> None:
    def main(rank: Rank) -> None:
        variants.run(rank, "no wait at all", 1)
        raise KeyError("a consequence")

    kinds = {f.kind for f in ep_lib.check(main, 2, seeds=2).findings}
    assert kinds == {"race", "exception"}
    with pytest.raises(KeyError, match="by itself"):
        ep_lib.check(lambda rank: {}["by itself"], 2, seeds=2)


def test_values_that_depend_on_the_schedule() -> None:
    def main(rank: Rank) -> Any:
        counter, who = rank.symmetric(1, "uint32"), rank.symmetric(64, "int32")
        source = ROOT / "tutorial_kernels" / "00_start_here.cu"
        ep_lib.Kernel.from_file(source, "take_a_number").launch(rank, 1, 32, counter, who)
        rank.barrier()
        return rank.to_host(who)

    report = ep_lib.check(main, 2, seeds=10)
    assert report.values_differ and [f.kind for f in report.findings] == ["values differ"], str(report)
    assert ep_lib.check(main, 2, seeds=10, compare_values=False).ok


def test_a_failure_ends_the_search_if_that_is_asked_for() -> None:
    calls: list[int] = []

    def main(rank: ep_lib.Rank) -> int:
        calls.append(rank.rank)
        assert len(calls) != 3, "the third run fails"
        return len(calls)

    report = ep_lib.check(main, 1, seeds=6, stop_at_failure=True)
    assert report.seeds == (0, 1, 2)
    assert {each.kind for each in report.findings} == {"values differ", "assertion"}


def test_an_operation_tells_its_life() -> None:
    report = report_of("signal without quiet", stop_at_first=True)
    assert "posted at turn" in str(report) and "put of 256 bytes from rank" in str(report)


@pytest.mark.parametrize(
    "bad", [{"seeds": 0}, {"fabric": "carrier pigeon"}, {"main": None}, *({"memory": m} for m in ("weak", "", None, 3))]
)
def test_bad_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ep_lib.errors.ArgumentError, match=next(iter(bad))):
        ep_lib.check(**{"main": lambda rank: None, "ranks": 2, **bad})


# ---- one line of the library's own headers ---------------------------------------------------------------------------
ROOTS = (Path(ep_lib.__file__).parent / "device", Path(ep_lib.__file__).parent)
LIBRARY_MISTAKES = [  # header, line, what it becomes, the launch that gets it
    (
        "ep/write_signal",
        "    __syncwarp();  // lane 0's release covers the other lanes' stores",
        "    //",
        "pipelined_send",
    ),
    ("ep/write_signal", "if (round >= slots && !wait", "if (false && !wait", "pipelined_send"),
    ("ep/write_signal", "round - slots + 1", "round - slots", "pipelined_send"),
    ("ep/write_signal", "__syncwarp();  // all lanes have read", "//", "pipelined_receive"),
    ("ep/write_signal", "pipe.arrived, round + 1", "pipe.arrived, round", "pipelined_receive"),
    (
        "ep/wait",
        "    ok = __shfl_sync(kFullWarp, ok, 0);\n    __syncwarp();",
        "    ok = __shfl_sync(kFullWarp, ok, 0);",
        "pipelined_receive",
    ),
    ("ep/slots", "    __syncthreads();\n    const int mine", "    const int mine", "layout"),
    ("ep/slots", "__syncthreads();  // warp_totals of an earlier call have been read", "", "layout"),
    ("moe/common/layout", "    __syncwarp();\n    return found;", "    return found;", "dispatch"),
    (
        "moe/common/notify",
        "        __syncthreads();\n        signal_all(args.signals, kSignalCounts);",
        "        signal_all(args.signals, kSignalCounts);",
        "exchange_counts",
    ),
    ("ep/all_ranks", "return __syncthreads_or(failed) == 0;", "return failed == 0;", "exchange_counts"),
    (
        "ep/all_ranks",
        "const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;",
        "const uint32_t mine = ok ? 1 : 1 + kFailedBlock;",
        "dispatch",
    ),
    ("ep/all_ranks", "atom_add_acq_rel_gpu_u32", "atom_add_relaxed_gpu_u32", "stage"),
]


@pytest.mark.parametrize("number", range(len(LIBRARY_MISTAKES)))
def test_a_mistake_in_the_library_is_flagged(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, old, new, launch = LIBRARY_MISTAKES[number]
    text = next(file for root in ROOTS if (file := root / f"{header}.cuh").exists()).read_text()
    assert text.count(old) == 1, f"the line is there {text.count(old)} times"
    mine = tmp_path / f"{header}.cuh"
    mine.parent.mkdir(parents=True)
    mine.write_text(text.replace(old, new))

    def patched(original: ep_lib.Kernel) -> ep_lib.Kernel:
        assert original.path is not None
        return ep_lib.Kernel.from_file(original.path, original.name, include=[tmp_path])

    if launch.startswith("pipelined"):
        pair = [patched(kernel(n)) if n == launch else kernel(n) for n in ("pipelined_send", "pipelined_receive")]
        report = ep_lib.check(pipeline, 2, seeds=MANY_SEEDS, args=(*pair, 160, 2, 6), stop_at_first=True)
    else:
        original = simple_exchange.kernel
        wrong = functools.cache(lambda *name: patched(original(*name)))
        monkeypatch.setattr(simple_exchange, "kernel", lambda *name: (wrong if name[0] == launch else original)(*name))
        case = make_case(4, world_size=2, dtype="bfloat16", max_tokens=100)
        report = ep_lib.check(
            simple_exchange.run_simple, 2, seeds=MANY_SEEDS, args=(case, 3, False), stop_at_first=True
        )
    assert {f.kind for f in report.findings} & {"race", "slot reused", "uninitialised"}, str(report)


# ---- what a report says ----------------------------------------------------------------------------------------------


def test_one_mistake_on_many_ranks_and_lanes_is_one_finding() -> None:
    alike = ("int4 at an odd address", "one element past a peer's array", "waits for too much", "warp reads too early")
    for name in alike:
        report = report_of(name)
        assert len(report.findings) == 1, str(report)
        assert report.findings[0].ranks == (0, 1) and report.findings[0].count >= 20
    assert "also    on rank" in str(report)


def test_a_fault_of_a_kernel_has_its_line_and_a_remedy() -> None:
    [finding] = report_of("int4 at an odd address").findings
    assert finding.first is not None and finding.first.source.startswith("reinterpret_cast<int4*>")
    assert "multiple of 16" in finding.remedy
    [finding] = report_of("puts one element too many").findings
    assert finding.first is not None and "net_put_nbi" in finding.first.source and "bounds" in finding.remedy
    [finding] = report_of("one element past a peer's array").findings
    assert "below the array's length in line" in finding.place


READS = """extern "C" __global__ void reads(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x]; }"""


def takes_memory_again(rank: ep_lib.Rank, reads: ep_lib.Kernel, is_marked: bool) -> bool:
    """Whether NumPy gave the memory of an unwritten array out again, and a kernel read it."""
    out = rank.symmetric(32, np.int32)
    left = rank.empty(32, np.int32)
    place = left.ctypes.data
    if not is_marked:
        del left
        left = np.empty(32, np.int32)
    reads.launch(rank, 1, 32, left, out)
    rank.synchronize()
    return bool(left.ctypes.data == place)


def test_unwritten_memory_that_was_freed_is_not_told() -> None:
    reads = ep_lib.Kernel.from_source(READS, "reads")
    assert "uninitialised" in str(ep_lib.check(takes_memory_again, 1, seeds=1, args=(reads, True)))
    assert any(ep_lib.spawn(takes_memory_again, 1, args=(reads, False)) for _ in range(20))
    for _ in range(20):
        report = ep_lib.check(takes_memory_again, 1, seeds=1, args=(reads, False))
        assert report.ok, str(report)


def test_a_part_of_an_array_outlives_it() -> None:
    reads = ep_lib.Kernel.from_source(READS, "reads")

    def main(rank: ep_lib.Rank) -> list[int]:
        part = rank.empty((3, 32), np.int32)[1]  # the whole has no other name
        out = rank.symmetric(32, np.int32)
        part[:] = 7
        reads.launch(rank, 1, 32, part, out)
        assert rank.to_host(out).tolist() == [7] * 32 and rank.empty((0, 5), "bfloat16").size == 0
        return [int(number) for number in part]

    assert ep_lib.spawn(main, 1) == [[7] * 32]
    assert ep_lib.check(main, 1, seeds=2).ok


@pytest.mark.parametrize(
    ("writes", "reads"),
    [
        ("x[0] = 1", "memcpy(own, x, 24)"),
        ("x[4] = 1", "memmove(own, x, 40)"),
        ("x[0] = 1", "memcpy(own, x, 3)"),
        ("x[1] = 1", "__builtin_memcpy(own, x, sizeof own)"),
        ("memset(x, 7, 24)", "own[0] = x[2]"),
        ("__builtin_memset(x, 7, 8)", "own[0] = x[0]"),
        ("x[2] = 1", "own[0] = memcmp(own, x, 24)"),
        ("x[0] = 1", "own[0] = __builtin_memcmp(own, x, 8)"),
    ],
)
def test_copies_and_comparisons_of_every_length_are_watched(writes: str, reads: str) -> None:
    source = """#include <stdint.h>
    extern "C" __global__ void copies(uint64_t* x, uint64_t* out) {
        uint64_t own[6] = {};
        if (threadIdx.x == 0) {
            WRITES;
        } else if (threadIdx.x == 32) {
            READS;
            for (uint64_t value : own) *out += value;
        }
    }"""
    kernel = ep_lib.Kernel.from_source(source.replace("WRITES", writes).replace("READS", reads), "copies")

    def main(rank: ep_lib.Rank) -> None:
        kernel.launch(rank, 1, 64, rank.symmetric(6, np.uint64), rank.symmetric(1, np.uint64))
        rank.synchronize()

    [finding] = ep_lib.check(main, 1, seeds=3).findings
    places = (finding.first, finding.second)
    assert finding.kind == "race" and {place.source.strip(" ;") for place in places if place} == {writes, reads}

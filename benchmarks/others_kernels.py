"""Checks the models of others' kernels in examples/models, and prints what was found of each in how many schedules.

    python benchmarks/others_kernels.py [--only nccl_ll] [--seconds 60]

The table in docs/others_kernels.md is from here. The exit code is 1 if a right one has a finding or a mistake has none.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ep_lib

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
SEEDS = 20


class Case(NamedTuple):
    """A function of a model, how it is run, and a part of the line at which it goes wrong; "": it is right."""

    model: str
    function: str
    fabric: str
    memory: str
    line: str = ""
    ranks: int = 2

    @property
    def main(self) -> Callable[[ep_lib.Rank], Any]:
        """The program."""
        if str(MODELS) not in sys.path:
            sys.path.insert(0, str(MODELS))
        program: Callable[[ep_lib.Rank], Any] = getattr(importlib.import_module(self.model), self.function)
        return program

    def check(self, **how: Any) -> ep_lib.CheckReport:
        """With small heaps, which make a run shorter."""
        return ep_lib.check(self.main, self.ranks, self.fabric, memory=self.memory, heap_bytes=1 << 16, **how)

    @property
    def where(self) -> str:
        """On what it runs."""
        return (
            f"{self.ranks} ranks, {self.fabric}, {self.memory}" if self.ranks > 2 else f"{self.fabric}, {self.memory}"
        )


CASES = [
    Case("deepep_low_latency", "main", "rc", "sc"),
    Case("deepep_low_latency", "main", "srd", "sc"),
    Case("deepep_low_latency", "fence_removed", "rc", "sc"),
    Case("deepep_low_latency", "fence_removed", "srd", "sc", "b.out[call] = b.rows[mine]"),
    Case("deepep_low_latency", "one_buffer", "rc", "sc", "b.out[call] = b.rows[0]"),
    Case("deepep_low_latency", "cleaned_after_the_count", "rc", "sc", "st_relaxed_sys_u64(b.flags"),
    Case("deepep_low_latency", "flag_of_two_calls_ago", "rc", "sc", "__trap()"),
    Case("deepep_low_latency", "two_calls_under_way", "rc", "sc", "st_relaxed_sys_u64(b.flags"),
    Case("deepep_intranode", "main", "p2p", "ptx"),
    Case("deepep_intranode", "cheap_fence", "p2p", "sc", "out[thread] = queue[thread]"),
    Case("deepep_intranode", "release_of_one_warp", "p2p", "sc", "out[thread] = queue[thread]"),
    Case("deepep_combine_tma", "main", "p2p", "sc"),
    Case("deepep_combine_tma", "polled_without_fence", "p2p", "sc", "tma_load(stage"),
    Case("deepep_combine_tma", "stage_without_fence", "p2p", "sc"),
    Case("deepep_combine_tma", "stage_before_all_have_read", "p2p", "sc", "tma_load(stage"),
    Case("nccl_ll", "main", "p2p", "sc"),
    Case("nccl_ll", "main", "p2p", "ptx"),
    Case("nccl_ll", "looks_at_one_flag", "p2p", "sc", "__trap()"),
    Case("nccl_ll", "flag_of_the_slot", "p2p", "sc", "__trap()"),
    Case("nccl_ll", "head_not_waited_for", "p2p", "sc", "ep::ld_relaxed_sys_u64(line"),
    Case("nccl_ll128", "main", "p2p", "sc"),
    Case("nccl_ll128", "main", "p2p", "ptx", "ep::st_relaxed_sys_u64(theirs"),
    Case("nccl_ll128", "halves_in_any_order", "p2p", "sc", "__trap()"),
    Case("nccl_ll128", "released", "p2p", "ptx"),
    Case("nvshmem_signal", "main", "srd", "sc"),
    Case("nvshmem_signal", "one_counter_for_all_chunks", "rc", "sc"),
    Case("nvshmem_signal", "one_counter_for_all_chunks", "srd", "sc", "out[c] = data[2 * c]"),
    Case("nvshmem_signal", "put_and_signal_apart", "rc", "sc"),
    Case("nvshmem_signal", "put_and_signal_apart", "srd", "sc", "out[c] = data[2 * c]"),
    Case("nvshmem_signal", "source_without_quiet", "rc", "sc", "source[2 * c] = 0"),
    Case("nvshmem_signal", "barrier", "srd", "sc"),
    Case("nvshmem_signal", "barrier_without_fence", "srd", "sc", "wait_until_ge(signals, round"),
    Case("nixl_ep", "main", "rc", "sc"),
    Case("nixl_ep", "count_on_another_channel", "rc", "sc", "out[0] = rows[0]"),
    Case("nixl_ep", "barriers", "rc", "sc", ranks=3),
    Case("nixl_ep", "waits_for_the_wrong_slot", "rc", "sc", "wait_until_ge(slots + rank()", ranks=3),
    Case("nixl_ep", "one_counter_for_all_ranks", "rc", "sc", "wait_until_ge(slots + peer", ranks=3),
]


def findings(report: ep_lib.CheckReport, case: Case) -> list[ep_lib.emulator.findings.Finding]:
    """Those at the line of the mistake."""
    return [found for found in report.findings if case.line and case.line in str(found)]


def told(function: str) -> str:
    """What the table calls a function."""
    return "as published" if function == "main" else function


def row(case: Case, seconds: float) -> tuple[str, bool]:
    """The row of a case, and whether it is as it should be."""
    random = case.check(seeds=SEEDS)
    every = case.check(exhaustive=True, seconds=seconds, stop_at_first=bool(case.line))
    if case.line:
        both = findings(random, case), findings(every, case)
        kinds = ", ".join(sorted({found.kind for group in both for found in group}))
        seeds = len({seed for found in random.findings for seed in found.seeds})
        cells = [kinds, f"{seeds} of {SEEDS}", str(every.coverage.schedules) if not every.ok else str(every.coverage)]
        right = bool(both[0] or both[1]) and not every.ok
    else:
        cells = ["none", "none", str(every.coverage)]
        right = random.ok and every.ok
    cells = [f"`{case.model}`", told(case.function), case.where, *cells, f"{every.seconds:.1f}"]
    if not right:
        print(f"{case}\n{random}\n{every}", file=sys.stderr)
    return "| " + " | ".join(cells) + " |", right


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each exhaustive check (default: %(default)g)")
    parser.add_argument("--only", choices=sorted({case.model for case in CASES}), help="one of the models")
    args = parser.parse_args()
    print("| model | | on | found | of 20 seeds | exhaustive: in schedule | s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    all_right = True
    for case in CASES:
        if args.only in (None, case.model):
            text, right = row(case, args.seconds)
            all_right &= right
            print(text, flush=True)
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())

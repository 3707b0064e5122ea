"""``ep-lib bench pcie --model``: PCIe mode on the virtual clock, beside the table that DeepEP published.

Each run is a process of its own, two at a time if cores and memory allow; the longest begin first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Any

from ep_lib.commands.bench import stdout_kept_for_json
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.errors import ArgumentError
from ep_lib.require import at_least_one
from ep_lib.runtime.worker_processes import workers

if TYPE_CHECKING:
    from ep_lib.workshop.pcie_model import ModelRow, Setting

PUBLISHED_TOKENS = 4096
_BYTES_PER_RUN = 6 << 30  # of memory, at most: 32 ranks, 4096 tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="store_true",
        help="on the emulator's virtual clock (the only way so far): minutes; with --ranks 8, 46 s of a core",
    )
    parser.add_argument("--ranks", type=_numbers, default=[8, 16, 32], help="how many, or several (default: 8,16,32)")
    parser.add_argument(
        "--tokens", type=int, default=PUBLISHED_TOKENS, help="of each rank (default: %(default)s, as published)"
    )
    parser.add_argument(
        "--scale", type=int, default=14, help="how many times shorter than 7168 rows are (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="whole rows: an hour, tens of gigabytes")
    parser.add_argument("--fabric", choices=("rc", "srd"), default="rc", help="default: %(default)s")
    parser.add_argument("--hardware", default="h20-cx7", help="h20-cx7 (default), h100-cx7 or p5-efa")
    parser.add_argument(
        "--merge-sender-receiver",
        action=argparse.BooleanOptionalAction,
        help="only with (or only without) blocks that send and receive, on 12 SMs instead of 24; default: both",
    )
    parser.add_argument("--jobs", type=int, help="runs at a time (default: 2 if there are cores and memory for it)")


def run(args: argparse.Namespace) -> int:
    from ep_lib.workshop import pcie_model as model

    if not args.model:
        raise ArgumentError("bench pcie runs on the virtual clock only: call `ep-lib bench pcie --model`")
    jobs = _default_jobs() if args.jobs is None else at_least_one("--jobs", args.jobs)
    merged = [False, True] if args.merge_sender_receiver is None else [args.merge_sender_receiver]
    scale = 1 if args.full else args.scale
    settings = [
        model.Setting(ranks, args.tokens, scale, args.fabric, args.hardware, merge)
        for merge in merged
        for ranks in args.ranks
    ]
    for setting in settings:
        setting.check()
    begin = time.perf_counter()
    with stdout_kept_for_json(wanted=args.json):
        found = _run_all(settings, min(jobs, len(settings)))
    report = {
        "benchmark": "pcie",
        "clock": "virtual",
        "settings": [
            dataclasses.asdict(setting) | {"hidden": setting.hidden, "num_sms": setting.num_sms} for setting in settings
        ],
        "routing": model.ROUTING,
        "hardware": dataclasses.asdict(HARDWARE[args.hardware]),
        "jobs": jobs,
        "cpu_seconds": [seconds for _, seconds, _ in found],
        "seconds_in_all": round(time.perf_counter() - begin, 1),
        "peak_memory_mb": max(memory for _, _, memory in found),
        "rows": [dataclasses.asdict(row) | {"ratio": row.ratio} for rows, _, _ in found for row in rows],
    }
    print(json.dumps(report) if args.json else table(report))
    return 0


_Found = tuple[list["ModelRow"], float, int]  # rows, seconds of a core, megabytes


def _run_one(setting: Setting) -> _Found:
    from ep_lib.workshop import pcie_model as model

    begin = time.process_time()
    rows = model.rows_of(model.simulate_operations(setting), setting)
    return rows, round(time.process_time() - begin, 1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _run_all(settings: Sequence[Setting], jobs: int) -> list[_Found]:
    """Results in the order of the settings; prints a line to the standard error output after each."""
    done: dict[int, _Found] = {}

    def finished(index: int, found: _Found) -> None:
        done[index] = found
        setting = settings[index]
        how = "merged, " if setting.merge_sender_receiver else ""
        print(
            f"{len(done)} of {len(settings)}: {setting.ranks} ranks, {how}{found[1]:.0f} s of a core", file=sys.stderr
        )

    print(f"{len(settings)} runs of {settings[0].tokens} tokens per rank, {jobs} at a time", file=sys.stderr)
    longest_first = sorted(range(len(settings)), key=lambda index: -settings[index].ranks)
    if jobs == 1:
        for index in reversed(longest_first):
            finished(index, _run_one(settings[index]))
    else:
        with workers(jobs) as pool:  # a simulation uses one core
            running = {pool.submit(_run_one, settings[index]): index for index in longest_first}
            for future in as_completed(running):
                finished(running[future], future.result())
    return [done[index] for index in range(len(settings))]


def _default_jobs() -> int:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2 if cores > 1 and memory >= 2 * _BYTES_PER_RUN else 1


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 8,16,32") from None


# ---- printed table ---------------------------------------------------------------------------------------------------
TOLERANCE = 0.15
_UNEVEN = 0.05  # share of an operation's time between the first and the last rank that has received all rows


def table(report: dict[str, Any]) -> str:
    """The table as text; ``report``: the JSON object of the benchmark."""
    setting = report["settings"][0]
    lines = [
        f"PCIe mode, everything through the NIC, {setting['tokens']} tokens per rank, hidden 7168, top-8 of 256 "
        f"experts, fabric {setting['fabric']}, hardware {setting['hardware']}:",
        "",
        "  ranks  operation     SMs          published   model   ratio      wire  of the line       us",
        "                                         GB/s    GB/s              GB/s         rate",
    ]
    for row in report["rows"]:
        published, ratio = row["published_gbps"], row["ratio"]
        mark = "" if ratio is None or abs(ratio - 1) <= TOLERANCE else f"  off by more than {TOLERANCE:.0%}"
        sms = f"{row['num_sms']} merged" if row["merge_sender_receiver"] else f"{row['num_sms']}"
        lines.append(
            f"  {row['ranks']:>5}  {row['what']:<12}  {sms:<11}  {_or_dash(published, '9.2f', 9)}  "
            f"{row['logical_gbps']:>6.2f}  {_or_dash(ratio, '6.3f', 6)}  {row['wire_gbps']:>8.2f}  "
            f"{row['wire_gbps'] / row['line_gbps']:>11.1%}  {row['us']:>7,.0f}{mark}"
        )
    return "\n".join([*lines, "", *_explain(report), _cost(report)])


def _explain(report: dict[str, Any]) -> list[str]:
    rows, first, nic = report["rows"], report["settings"][0], report["hardware"]["nic"]
    by_ranks = {row["ranks"]: row for row in reversed(rows) if row["what"] == rows[0]["what"]}
    once = [by_ranks[ranks] for ranks in sorted(by_ranks)]
    visits = ", ".join(f"{row['rows_per_token']:.2f} at EP{row['ranks']}" for row in once)
    sums = "; ".join(
        f"EP{row['ranks']}: {row['logical_gbps']:.2f} x {row['leaving_share']:.1%} x {1 + row['wire_overhead']:.3f} = "
        f"{row['wire_gbps']:.2f}"
        for row in once
    )
    scaled = (
        f"Rows of {first['hidden']} elements instead of 7168, on hardware where each byte counts {first['scale']} "
        "times: the virtual time is that of the full rows."
    )
    return [
        "Logical GB/s (published and model): rows x bytes per row / time, as DeepEP counts: one row for each rank "
        f"that a token goes to ({visits} rows per token), the sender's own rank included.",
        "Wire GB/s: what a NIC sends. Rows for the own rank never reach it; headers of packets, signals and credits "
        f"do. So logical x share that leaves x overhead = wire ({rows[0]['what']}): {sums}.",
        f"Line rate: {nic['gbytes_per_s']:g} GB/s ({nic['name']}). It bounds the wire. With N ranks, (N - 1) / N of "
        "the rows cross it, so the logical speed may exceed the line rate, and approaches it with more ranks.",
        *_uneven(rows),
        *([scaled] if first["scale"] > 1 else []),
        f"Published with 4096 tokens and 24 SMs; this run has {first['tokens']} tokens. No number of the model was "
        "fitted to the table; --json prints each with its source.",
    ]


def _uneven(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The operations in which ranks ended at different times."""
    late = []
    for row in rows:
        if row["last_rank_us"] - row["first_rank_us"] > _UNEVEN * row["us"]:
            merged = " merged" if row["merge_sender_receiver"] else ""
            when = f"{row['first_rank_us']:,.0f} to {row['last_rank_us']:,.0f} us"
            late.append(f"EP{row['ranks']} {row['what']}{merged} {when}")
    if not late:
        return []
    return [f"Ranks received their last row far apart, and some NICs were idle meanwhile: {', '.join(late)}."]


def _cost(report: dict[str, Any]) -> str:
    return (
        f"This took {report['seconds_in_all']:.0f} s ({sum(report['cpu_seconds']):.0f} s of CPU time) and at most "
        f"{report['peak_memory_mb']} MB of memory per process."
    )


def _or_dash(value: float | None, form: str, width: int) -> str:
    return f"{'-':>{width}}" if value is None else format(value, form)

"""``ep-lib bench pcie --model``: PCIe mode on the virtual clock, beside the table that DeepEP published."""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from ep_lib.commands.bench import stdout_kept_for_json
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.errors import ArgumentError

QUICK_TOKENS = 1024
TOLERANCE = 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="store_true", help="on the emulator's virtual clock (the only way so far)")
    parser.add_argument("--ranks", type=_numbers, default=[8, 16, 32], help="how many, or several (default: 8,16,32)")
    parser.add_argument(
        "--tokens", type=int, default=QUICK_TOKENS, help="of each rank; published: 4096 (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", type=int, default=14, help="rows are so many times shorter than 7168 (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="4096 tokens, whole rows: many minutes, gigabytes")
    parser.add_argument("--fabric", choices=("rc", "srd"), default="rc", help="default: %(default)s")
    parser.add_argument("--hardware", default="h20-cx7", help="h20-cx7 (default), h100-cx7 or p5-efa")
    parser.add_argument("--merge-sender-receiver", action="store_true", help="one block sends and receives")


def run(args: argparse.Namespace) -> int:
    from ep_lib.workshop import pcie_model as model

    if not args.model:
        raise ArgumentError("bench pcie runs on the virtual clock only: call `ep-lib bench pcie --model`")
    tokens, scale = (model.TOKENS, 1) if args.full else (args.tokens, args.scale)
    settings = [
        model.Setting(ranks, tokens, scale, args.fabric, args.hardware, args.merge_sender_receiver)
        for ranks in args.ranks
    ]
    for setting in settings:
        setting.check()
    rows: list[model.ModelRow] = []
    seconds = []
    with stdout_kept_for_json(wanted=args.json):
        for setting in settings:
            begin = time.perf_counter()
            rows += model.rows_of(model.simulate_operations(setting), setting)
            seconds.append(round(time.perf_counter() - begin, 1))
            print(f"{setting.ranks} ranks: {seconds[-1]:.0f} s", file=sys.stderr)
    report = {
        "benchmark": "pcie",
        "clock": "virtual",
        "settings": [dataclasses.asdict(setting) | {"hidden": setting.hidden} for setting in settings],
        "routing": model.ROUTING,
        "hardware": dataclasses.asdict(HARDWARE[args.hardware]),
        "seconds": seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rows": [dataclasses.asdict(row) | {"ratio": row.ratio} for row in rows],
    }
    print(json.dumps(report) if args.json else _text(report))
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 8,16,32") from None


def _text(report: dict[str, Any]) -> str:
    setting, nic = report["settings"][0], report["hardware"]["nic"]
    lines = [
        f"PCIe mode, everything through the NIC, {setting['tokens']} tokens a rank, top-8 of 256 experts, 24 SMs, "
        f"fabric {setting['fabric']}, hardware {setting['hardware']}:",
        "",
        "  ranks  operation      published   model   ratio      wire  of the line       us",
        "                             GB/s    GB/s              GB/s         rate",
    ]
    for row in report["rows"]:
        published, ratio = row["published_gbps"], row["ratio"]
        mark = "" if ratio is None or abs(ratio - 1) <= TOLERANCE else f"  off by more than {TOLERANCE:.0%}"
        lines.append(
            f"  {row['ranks']:>5}  {row['what']:<13}  {_or_dash(published, '9.2f', 9)}  {row['logical_gbps']:>6.2f}  "
            f"{_or_dash(ratio, '6.3f', 6)}  {row['wire_gbps']:>8.2f}  {row['wire_gbps'] / row['line_gbps']:>11.1%}  "
            f"{row['us']:>7,.0f}{mark}"
        )
    return "\n".join([*lines, "", *_explain(report["rows"], report["settings"], nic), _cost(report)])


def _explain(rows: Sequence[dict[str, Any]], settings: Sequence[dict[str, Any]], nic: dict[str, Any]) -> list[str]:
    visits = ", ".join(f"{row['rows_per_token']:.2f} at EP{row['ranks']}" for row in rows[::2])
    overheads = ", ".join(f"{row['wire_overhead']:.1%} at EP{row['ranks']}" for row in rows[::2])
    first = settings[0]
    scaled = (
        f"Rows of {first['hidden']} elements instead of 7168, on hardware where each byte counts {first['scale']} "
        "times: the virtual time is that of the full rows."
    )
    return [
        "Logical GB/s (published and model): rows x bytes a row / time, as DeepEP counts: a row once for each rank "
        f"that its token goes to ({visits} rows a token), the sender's own rank included.",
        "Wire GB/s: what a NIC sends. Rows for the own rank never reach it; headers of packets, signals and credits do "
        f"({overheads} more than the rows themselves, in FP8).",
        f"Line rate: {nic['gbytes_per_s']:g} GB/s ({nic['name']}). With N ranks, (N - 1) / N of the "
        "rows cross the wire, so the logical speed may pass the line rate, and nears it with more ranks.",
        *([scaled] if first["scale"] > 1 else []),
        f"Published with 4096 tokens; this run has {first['tokens']}. No number of the model was fitted to the "
        "table; --json prints each with its source.",
    ]


def _cost(report: dict[str, Any]) -> str:
    return f"This took {sum(report['seconds']):.0f} s and {report['peak_memory_mb']} MB of memory."


def _or_dash(value: float | None, form: str, width: int) -> str:
    return f"{'-':>{width}}" if value is None else format(value, form)

"""``ep-lib bench p2p``: how long a message takes from one rank to another and back, by transport and size.

A message is data with its signal (``ep::net_put_signal_nbi``), posted by one thread; the answer leaves when the signal
is seen. The kernel is ``ping_pong`` of tutorial_kernels/03_ibgda_shim_debug.cu.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands.bench import sizes, stdout_kept_for_json
from ep_lib.commands.bench_put import VIRTUAL, kernels_file
from ep_lib.config import BACKENDS, TRANSPORTS, Config
from ep_lib.emulator.fabric import KINDS
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn

BATCHES = 5  # the median counts; one more before them warms up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=BACKENDS, help="default: EP_LIB_BACKEND, else the emulator")
    parser.add_argument("--bytes", type=sizes, default=[8, 64, 1024, 16384], help="of a message (default: 8,64,1K,16K)")
    parser.add_argument("--rounds", type=int, default=500, help="round trips in a batch (default: %(default)s)")
    parser.add_argument(
        "--transports", default="p2p", help=f"of GPUs, several: {','.join(TRANSPORTS[:3])} (default: p2p)"
    )
    parser.add_argument("--fabrics", default="p2p,rc,srd", help="of the emulator (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.rounds < 1:
        raise ArgumentError(f"--rounds is {args.rounds}; it must be at least 1")
    backend = args.backend or Config.from_environment().backend
    names, known = (args.fabrics, KINDS) if backend == "emulator" else (args.transports, TRANSPORTS)
    ways = names.split(",")
    if unknown := [way for way in ways if way not in known]:
        raise ArgumentError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    rows = []
    for way in ways:
        options = {
            "fabric" if backend == "emulator" else "transport": way,
            "heap_bytes": max(64 << 20, 4 * max(args.bytes)),
        }
        with stdout_kept_for_json(wanted=args.json):
            measured = spawn(_measure, 2, backend, args=(kernels_file(), args.bytes, args.rounds), **options)
        rows += [{"way": way, **row} for row in measured[0]]
    report = {
        "benchmark": "p2p",
        "backend": backend,
        "rounds": args.rounds,
        "clock": "virtual" if backend == "emulator" else "real",
        "results": rows,
    }
    print(json.dumps(report) if args.json else _table(report))
    return 0


def _measure(rank: Rank, source: Path, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row a size: cycles and microseconds of a round trip, the median of several batches."""
    inbox, outbox = (rank.symmetric(max(sizes), np.uint8) for _ in range(2))
    signal, totals = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(2, np.int64))
    outbox[:] = rank.rank + 1
    kernel, done, rows = Kernel.from_file(source, "ping_pong"), 0, []
    for size in sizes:
        batches = []
        for _ in range(1 + BATCHES):
            rank.barrier()
            kernel.launch(
                rank, 1, 1, inbox, outbox, size, signal, done, rounds, 1 - rank.rank, int(rank.rank == 0), totals
            )
            done += rounds
            batches.append([int(total) / rounds for total in rank.to_host(totals)])
        rank.barrier()
        if set(rank.to_host(inbox)[:size].tolist()) != {2 - rank.rank}:
            raise RuntimeError(f"rank {rank.rank}: the other rank's bytes did not arrive as they were sent")
        cycles, ns = (statistics.median(column) for column in zip(*batches[1:], strict=True))
        rows.append({"bytes": size, "cycles": round(cycles, 1), "us": round(ns / 1000, 3)})
    return rows


def _table(report: dict[str, Any]) -> str:
    virtual = report["clock"] == "virtual"
    what = "fabric" if virtual else "transport"
    lines = ["There and back, data with its signal, one thread each:"]
    lines.append(f"  {what:>13}  {'bytes':>9}  {'cycles':>11}" + ("" if virtual else f"  {'us':>8}"))
    for row in report["results"]:
        line = f"  {row['way']:>13}  {row['bytes']:>9}  {row['cycles']:>11,.1f}"
        lines.append(line if virtual else f"{line}  {row['us']:>8.2f}")
    return "\n".join([*lines, *([VIRTUAL] if virtual else [])])

"""``ep-lib bench p2p``: how long a message takes from one rank to another and back, by transport and size.

A message is data with its signal (``ep::net_put_signal_nbi``), posted by one thread; the answer leaves when the signal
is seen; 0 bytes are a signal alone. The kernel is ``ping_pong`` of tutorial_kernels/03_ibgda_shim_debug.cu.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands import bench_worlds
from ep_lib.commands.bench import sizes_from_zero
from ep_lib.commands.bench_put import kernels_file
from ep_lib.config import TRANSPORTS
from ep_lib.emulator.fabric import KINDS
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank

BATCHES = 5  # the median counts; one more before them warms up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    bench_worlds.add_arguments(parser)
    parser.add_argument("--transports", default="p2p", help=f"of GPUs, one or more of {','.join(TRANSPORTS)}")
    parser.add_argument("--fabrics", default="p2p,rc,srd", help="of the emulator (default: %(default)s)")
    parser.add_argument(
        "--bytes", type=sizes_from_zero, default=[0, 64, 1024, 16384], help="of a message (default: 0,64,1K,16K)"
    )
    parser.add_argument("--rounds", type=int, default=500, help="round trips in a batch (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.rounds < 1:
        raise ArgumentError(f"--rounds is {args.rounds}; it must be at least 1")
    backend = bench_worlds.choose_backend(args)
    names, known = (args.fabrics, KINDS) if backend == "emulator" else (args.transports, TRANSPORTS)
    networks = names.split(",")
    if unknown := [name for name in networks if name not in known]:
        raise ArgumentError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    heap_bytes, rows, worlds = max(64 << 20, 4 * max(args.bytes)), [], []
    for network in networks:
        world = bench_worlds.make_world(args, backend, network)
        what = (kernels_file(), args.bytes, args.rounds)
        measured = world.run(_measure, 2, *what, heap_bytes=heap_bytes, quiet=args.json)
        rows += [{**world.facts(), **row} for row in measured[0]]
        worlds.append(world)
    report = {"benchmark": "p2p", "rounds": args.rounds, "results": rows}
    print(json.dumps(report) if args.json else _table(rows, worlds[-1].note))
    return 0


def _measure(rank: Rank, source: Path, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row a size: cycles and microseconds of a round trip, the median of several batches."""
    inbox, outbox = (rank.symmetric(max(1, *sizes), np.uint8) for _ in range(2))
    signal, totals = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(2, np.int64))
    outbox[:] = rank.rank + 1
    kernel, done, rows = Kernel.from_file(source, "ping_pong"), 0, []
    for size in sizes:
        batches = []
        for _ in range(1 + BATCHES):
            rank.barrier()
            ends = (1 - rank.rank, int(rank.rank == 0))
            kernel.launch(rank, 1, 1, inbox, outbox, size, signal, done, rounds, *ends, totals)
            done += rounds
            batches.append([int(total) / rounds for total in rank.to_host(totals)])
        rank.barrier()
        if not bool((rank.to_host(inbox)[:size] == 2 - rank.rank).all()):
            raise RuntimeError(f"rank {rank.rank}: the other rank's bytes did not arrive as they were sent")
        cycles, ns = (statistics.median(column) for column in zip(*batches[1:], strict=True))
        rows.append({"bytes": size, "cycles": round(cycles, 1), "us": round(ns / 1000, 3)})
    return rows


def _table(rows: list[dict[str, Any]], note: str) -> str:
    lines = ["There and back, data with its signal, one thread at each end:"]
    lines.append(f"  {'network':>13}  {'bytes':>9}  {'cycles':>12}  {'us':>9}")
    for row in rows:
        us = "-" if row["clock"] == "virtual" else f"{row['us']:.2f}"
        network = row.get("transport") or row.get("fabric")
        lines.append(f"  {network:>13}  {row['bytes']:>9}  {row['cycles']:>12,.1f}  {us:>9}")
    return "\n".join([*lines, *([note] if note else [])])

"""``ep-lib bench p2p``: the round-trip time of a message between two ranks, by transport and size.

On GPUs (p2p_gpu.py): every transport that works, 8 bytes to 256 MB, beside the copy engine and bare stores. On the
emulator: one thread posts data with its signal (``ep::net_put_signal_nbi``), and the peer answers when it sees the
signal; 0 bytes are a signal alone. The kernel is ``ping_pong`` of tutorial_kernels/03_ibgda_shim_debug.cu.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands.bench import add_world_arguments, choose_backend, make_world, p2p_gpu, show, sizes_from_zero
from ep_lib.commands.bench.p2p_gpu import BATCHES, COPY, PACKETS, STORES, WRITE
from ep_lib.commands.bench.put import kernels_file
from ep_lib.emulator.fabric import KINDS
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.require import whole_number
from ep_lib.runtime.rank import Rank
from ep_lib.transports import registry

EMULATOR_SIZES = [0, 64, 1 << 10, 16 << 10]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_world_arguments(parser)
    parser.add_argument(
        "--transports",
        default="p2p,nvshmem,nixl",
        help=f"of GPUs, some of {','.join(registry.names())}; what does not work here is left out "
        "(default: %(default)s)",
    )
    parser.add_argument("--fabrics", default="p2p,rc,srd", help="of the emulator (default: %(default)s)")
    parser.add_argument(
        "--bytes",
        type=sizes_from_zero,
        help="of a message (default: ten sizes from 8 to 256M on GPUs, 0,64,1K,16K on the emulator)",
    )
    parser.add_argument(
        "--rounds", type=int, default=500, help="round trips in a batch, at most (default: %(default)s)"
    )
    parser.add_argument("--blocks", type=int, default=32, help="of large messages on GPUs (default: %(default)s)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw latency and bandwidth (PNG, SVG or PDF)")


def run(args: argparse.Namespace) -> int:
    whole_number("--rounds", args.rounds, 1, 1_000_000)
    whole_number("--blocks", args.blocks, 1, 64)
    backend = choose_backend(args)
    if args.figure and backend == "emulator":
        raise ArgumentError("--figure draws what was measured on GPUs; on the emulator there is only the table")
    names, known = (args.fabrics, KINDS) if backend == "emulator" else (args.transports, registry.names())
    networks = names.split(",")
    if unknown := [name for name in networks if name not in known]:
        raise ArgumentError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    places = [make_world(args, backend, network) for network in networks]
    report: dict[str, Any] = {"benchmark": "p2p", "rounds": args.rounds}
    if backend == "cuda":
        sizes = tuple(sorted(set(args.bytes or p2p_gpu.SIZES)))
        plan = p2p_gpu.Plan(sizes, args.rounds, args.blocks)
        report["results"], report["not_measured"] = p2p_gpu.compare(places, plan, quiet=args.json)
        table = table_of_gpus(report["results"], report["not_measured"])
    else:
        sizes = tuple(args.bytes or EMULATOR_SIZES)
        what = (kernels_file(), list(sizes), args.rounds)
        report["results"] = [
            {**world.facts(), **row}
            for world in places
            for row in world.run(_measure, 2, *what, heap_bytes=max(64 << 20, 4 * max(sizes)), quiet=args.json)[0]
        ]
        table = table_of_fabrics(report["results"], places[-1].note)
    show(report, args, table)
    return 0


def _measure(rank: Rank, source: Path, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row per size: cycles and microseconds of a round trip, the median of several batches."""
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


# ---- tables ----------------------------------------------------------------------------------------------------------
_WIDTH = 13


def table_of_fabrics(rows: Sequence[Mapping[str, Any]], note: str) -> str:
    """The table of emulated ranks: one line per fabric and size."""
    lines = ["There and back, data with its signal, one thread at each end:"]
    lines.append(f"  {'network':>13}  {'bytes':>9}  {'cycles':>12}  {'us':>9}")
    for row in rows:
        us = "-" if row["clock"] == "virtual" else f"{row['us']:.2f}"
        lines.append(f"  {row['fabric']:>13}  {row['bytes']:>9}  {row['cycles']:>12,.1f}  {us:>9}")
    return "\n".join([*lines, *([note] if note else [])])


def table_of_gpus(rows: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """The table of GPUs: one line per size; for each transport a round trip in microseconds, and one way in GB/s."""
    cells = {(row["transport"], row["how"], row["bytes"]): row for row in rows if row["how"] not in (COPY, STORES)}
    ways = list(dict.fromkeys((transport, how) for transport, how, _ in cells))
    copies = {row["bytes"]: row for row in rows if row["how"] == COPY}
    names = [transport if how == WRITE else how for transport, how in ways]
    rates = [way for way in ways if way[1] == WRITE]
    lines = [
        "A message and its answer, each with a signal, between two GPUs: us of the round trip, and GB/s (10^9) of",
        "one way; the copy engine's copies follow one another, with no signal and no answer.",
        "",
        _line("bytes", [*(f"{name} us" for name in names), *(f"{name} GB/s" for name, _ in rates), "copies GB/s"]),
    ]
    for size in sorted({size for _, _, size in cells}):
        us = (_number(cells.get((*way, size)), "us") for way in ways)
        gbytes = (_number(cells.get((*way, size)), "gbytes_per_s") for way in rates)
        lines.append(_line(_size(size), [*us, *gbytes, _number(copies.get(size), "gbytes_per_s")]))
    for row in rows:
        if row["how"] == STORES:
            lines += [
                "",
                f"The ceiling: bare stores of {row['blocks']} blocks, one way: {row['gbytes_per_s']:.1f} GB/s",
            ]
    if any(how == PACKETS for _, how in ways):
        lines.append(
            "Packets: 8 bytes of data and their signal in one 16-byte store (<ep/packet.cuh>). Good lines: into those"
        )
        lines.append("of 64 lines of L2 at each end that make the round trip shortest.")
    lines += [f"Not measured: {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines)


def _line(first: str, others: Iterable[str]) -> str:
    return f"{first:>7}" + "".join(f"  {text:>{max(_WIDTH, len(text))}}" for text in others)


def _number(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None or row[key] is None:
        return "-"
    value = row[key]
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)

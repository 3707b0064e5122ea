"""``ep-lib bench put``: the put benchmark of the EFA device guide, on GPUs or on the emulator.

After one put to warm up, it times 1,000 puts and one quiet, and then the same with a quiet after every put, which the
guide advises against. The kernels are those of tutorial_kernels/03_ibgda_shim_debug.cu.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands.bench import Platform, add_world_arguments, choose_backend, make_world, sizes
from ep_lib.compat import ibgda
from ep_lib.config import Config
from ep_lib.emulator.fabric import KINDS
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.require import at_least_one
from ep_lib.runtime.rank import Rank
from ep_lib.transports import registry
from ep_lib.workshop.exercises import workshop_root

WAYS = {"one_quiet": "benchmark_put", "quiet_each": "benchmark_put_quiet_each"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_world_arguments(parser)
    parser.add_argument("--transport", choices=registry.names(), help="of GPUs (default: EP_LIB_TRANSPORT, else auto)")
    parser.add_argument("--fabric", choices=KINDS, help="of the emulator (default: p2p)")
    parser.add_argument("--ranks", type=int, default=2, help="each puts to the next one (default: %(default)s)")
    parser.add_argument("--ranks-per-node", type=int, default=1, help="with rc and srd (default: %(default)s)")
    parser.add_argument("--bytes", type=sizes, default=[4096], help="of a put: 4096, or several: 8,4K,1M (default: 4K)")
    parser.add_argument("--puts", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the emulator's schedule, with --hardware none")
    parser.add_argument(
        "--state", action="store_true", help="first run the kernels that print the shim's state and the peers"
    )


def run(args: argparse.Namespace) -> int:
    at_least_one("--puts", args.puts)
    world = _world(args)
    measured = world.run(
        measure,
        args.ranks,
        kernels_file(),
        args.bytes,
        args.puts,
        args.state,
        heap_bytes=max(64 << 20, 4 * max(args.bytes)),
        quiet=args.json,
        ranks_per_node=args.ranks_per_node,
        seed=args.seed,
    )
    report = {
        "benchmark": "put",
        **world.facts(),
        "ranks": args.ranks,
        "puts": args.puts,
        "results": [row for rows in measured for row in rows],
    }
    print(json.dumps(report) if args.json else _table(world, report))
    return 0


def _world(args: argparse.Namespace) -> Platform:
    backend = choose_backend(args)
    if backend == "emulator" and args.transport:
        raise ArgumentError(f"--transport {args.transport} is for GPUs; the emulator's networks are --fabric")
    if backend == "cuda" and args.fabric:
        raise ArgumentError(f"--fabric {args.fabric} is for the emulator; leave it out on GPUs")
    network = args.fabric or "p2p"
    if backend == "cuda":
        network = args.transport or Config.from_environment().transport
    return make_world(args, backend, network)


def kernels_file() -> Path:
    """The debugging kernels of tutorial 03, in a checkout."""
    return workshop_root("tutorial_kernels", ArgumentError) / "tutorial_kernels" / "03_ibgda_shim_debug.cu"


def measure(rank: Rank, source: Path, sizes: list[int], puts: int, state: bool) -> list[dict[str, Any]]:
    """One row per size: cycles and nanoseconds of one put from this rank to the next."""
    peer = (rank.rank + 1) % rank.world_size
    remote, local = (rank.symmetric(max(sizes), np.uint8) for _ in range(2))
    local[:] = rank.rank + 1
    totals = rank.to_device(np.zeros(2, np.int64))
    ibgda.init_efa_device_state(rank)
    if state:
        Kernel.from_file(source, "print_ibgda_state").launch(rank, 1, 32)
        Kernel.from_file(source, "print_p2p").launch(rank, 1, 32, remote)
        rank.barrier()
    rows = []
    for size in sizes:
        row: dict[str, Any] = {"rank": rank.rank, "peer": peer, "bytes": size}
        for way, name in WAYS.items():
            kernel = Kernel.from_file(source, name)
            rank.barrier()
            kernel.launch(rank, 1, 32, remote, local, size, peer, puts, totals)
            rank.barrier()
            cycles, ns = (int(total) / puts for total in rank.to_host(totals))
            row[way] = {"cycles_a_put": round(cycles, 1), "ns_a_put": round(ns, 1)}
        expected = (rank.rank - 1) % rank.world_size + 1
        if set(rank.to_host(remote)[:size].tolist()) != {expected}:
            raise RuntimeError(f"rank {rank.rank}: the bytes of rank {expected - 1} did not arrive as they were sent")
        rows.append(row)
    return rows


def _table(world: Platform, report: dict[str, Any]) -> str:
    lines = [f"{report['puts']} puts of one warp on {world.place}; cycles per put:"]
    lines.append(f"  {'ranks':>8}  {'bytes':>9}  {'one quiet':>11}  {'quiet each':>12}   times")
    for row in report["results"]:
        one, each = (row[way] for way in WAYS)
        pair, cycles = f"{row['rank']} -> {row['peer']}", [way["cycles_a_put"] for way in (one, each)]
        times = cycles[1] / max(cycles[0], 0.1)
        line = f"  {pair:>8}  {row['bytes']:>9}  {cycles[0]:>11,.1f}  {cycles[1]:>12,.1f}  {times:>6.1f}"
        if world.clock != "virtual":
            line += f"   ({one['ns_a_put']:,.1f} and {each['ns_a_put']:,.1f} ns)"
        lines.append(line)
    return "\n".join([*lines, *([world.note] if world.note else [])])

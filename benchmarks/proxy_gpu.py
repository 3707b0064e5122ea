"""The CPU proxy between two GPUs: what its ring costs, and what the copy engine gives behind it.

    python benchmarks/proxy_gpu.py [--megabytes 2048] [--runs 5] [--json]

* GB/s (10^9) of 1 MB commands: a kernel on GPU 0 pushes them, the proxy hands them to the copy engine, and the kernel
  waits until all are done; by 1, 2 and 4 rings, with one proxy thread and with one for each ring. A warp pushes 32 at
  once. "in a row": each continues the one before it, so the proxy makes one copy of a batch; "each alone": none does;
  "by one thread": in a row, pushed one after the other. Beside it, in the same run, the copy engine's own rate: one
  large copy, and copies of 1 MB one after the other. The target's bytes are checked. To reach: 90 % of the former.
* us of a round trip: a kernel pushes a command that does nothing and waits until it sees that it is done. To reach: 3.
* us of a message and its answer: 8 bytes and a signal that is set, each by its GPU's proxy and copy engine.

Medians of ``--runs`` runs after a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ep_lib
from ep_lib.errors import EpError
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.gpu_heap import GpuRings

SOURCE = Path(__file__).resolve().with_name("proxy_gpu.cu")
COMMAND_BYTES = 1 << 20
SLOTS = 256
ROUND_TRIPS = 2000
MESSAGES = 500
WAYS = {"in a row": (32, 0), "each alone": (32, 1), "by one thread": (1, 0)}  # lanes that push; whether backwards
_DEVICE_TO_DEVICE = 3
REACH_SHARE, REACH_US = 0.9, 3.0


def launch(rank: ep_lib.Rank, name: str, blocks: int, threads: int, *arguments: Any) -> float:
    """Seconds from the first block's begin to the last one's end, by the GPU's clock."""
    clock = rank.xp.zeros(2 * blocks, np.uint64)
    ep_lib.Kernel.from_file(SOURCE, name).launch(rank, blocks, threads, *arguments, clock)
    rank.synchronize()
    told = rank.to_host(clock)
    return float(told[1::2].max() - told[::2].min()) / 1e9


@contextlib.contextmanager
def served(count: int, by: engine.Executor, threads: int = 1) -> Iterator[tuple[GpuRings, engine.Proxy]]:
    """Rings and the proxy that serves them, until the end of the context."""
    rings = GpuRings(count, SLOTS)
    proxy = engine.Proxy(rings, by, cpus=[-1] * threads)
    try:
        yield rings, proxy
    except EpError as error:
        error.add_note(f"the proxy {proxy.failure() or 'has not given up'}; {proxy.counts()}")
        raise
    finally:
        proxy.finish(5.0)
        rings.free()


def executor(rank: ep_lib.Rank, queues: int) -> engine.CopyEngine:
    backend: Any = rank._backend
    addresses = [backend.heap_address(peer) for peer in range(rank.world_size)]
    place = {"device": backend.device, "arch": backend.arch}
    return engine.CopyEngine(queues, addresses, backend.heap_bytes, rank.rank, **place)


def microseconds(rank: ep_lib.Rank, cycles: Any, taken: float) -> dict[str, float]:
    """Of single rounds, whose cycles were counted while all of them took ``taken`` seconds."""
    counted = np.sort(rank.to_host(cycles).astype(np.float64))
    us = counted / counted.sum() * taken * 1e6
    return {"median": float(np.median(us)), "best": float(us[0]), "p99": float(us[int(0.99 * len(us))])}


def measure(rank: ep_lib.Rank, megabytes: int, runs: int) -> dict[str, Any]:
    nbytes, report = megabytes << 20, {}
    inbox, outbox = (rank.symmetric(nbytes, np.uint8) for _ in range(2))
    small, signal = rank.symmetric(8, np.uint64), rank.symmetric(1, np.uint64)
    # All executors before the first kernel: they try the heaps' last bytes, which have to be zero yet.
    made = {queues: [executor(rank, queues) for _ in range(2)] for queues in (1, 2, 4)}
    outbox[:] = (rank.xp.arange(nbytes, dtype=np.uint32) * np.uint32(2654435761) >> 24).astype(np.uint8)
    rank.barrier()
    if rank.rank == 0:
        report["copy_engine"] = copies(rank, inbox, outbox, runs)
        report["proxy"] = [
            pushed(rank, inbox, outbox, runs, queues, made[queues][several], queues if several else 1)
            for queues in made
            for several in ([False, True] if queues > 1 else [False])
        ]
        report["round_trip_us"] = round_trip(rank, runs)
    rank.barrier()
    report["message_and_answer_us"] = messages(rank, small, signal, made[1][1])
    rank.barrier()
    report["cpus"], report["load_average"] = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return report


def copies(rank: ep_lib.Rank, inbox: Any, outbox: Any, runs: int) -> dict[str, float]:
    """The copy engine's own rate, asked by this process; GB/s, by the GPU's events."""
    target, cuda, nbytes = rank.peer_address(inbox, 1), rank.xp.cuda, outbox.nbytes
    stream, begin, end = cuda.get_current_stream().ptr, cuda.Event(), cuda.Event()

    def rate(piece: int) -> float:
        begin.record()
        for at in range(0, nbytes, piece):
            cuda.runtime.memcpyAsync(target + at, outbox.data.ptr + at, piece, _DEVICE_TO_DEVICE, stream)
        end.record()
        end.synchronize()
        return float(nbytes / cuda.get_elapsed_time(begin, end) / 1e6)

    pieces = {"one copy": nbytes, "1 MB one after the other": COMMAND_BYTES}
    return {name: statistics.median([rate(piece) for _ in range(runs + 1)][1:]) for name, piece in pieces.items()}


def pushed(
    rank: ep_lib.Rank, inbox: Any, outbox: Any, runs: int, queues: int, by: engine.CopyEngine, threads: int
) -> dict[str, Any]:
    """1 MB commands through so many rings; GB/s."""
    commands = outbox.nbytes // COMMAND_BYTES // queues
    row: dict[str, Any] = {"rings": queues, "threads": threads}
    memory = rank.xp.cuda.UnownedMemory(rank.peer_address(inbox, 1), outbox.nbytes, rank, rank.xp.cuda.Device().id)
    target = rank.xp.ndarray(outbox.nbytes, np.uint8, rank.xp.cuda.MemoryPointer(memory, 0))
    with served(queues, by, threads) as (rings, proxy):
        for name, (lanes, descending) in WAYS.items():
            target[:] = 0
            rank.synchronize()
            given = (rings.on_gpu, inbox, outbox, COMMAND_BYTES, commands, descending, 1)
            before, took = proxy.counts(), []
            for _ in range(runs + 1):
                took.append(launch(rank, "push_writes", queues, lanes, *given))
            after = proxy.counts()
            row[name] = outbox.nbytes / statistics.median(took[1:]) / 1e9
            row[f"{name}, commands in a batch"] = (after.commands - before.commands) / (after.batches - before.batches)
            row[f"{name}, right"] = bool((target == outbox).all())
    return row


def round_trip(rank: ep_lib.Rank, runs: int) -> dict[str, float]:
    cycles, rows = rank.xp.zeros(ROUND_TRIPS, np.int64), []
    with served(1, engine.Nothing(1)) as (rings, _):
        for _ in range(runs + 1):
            taken = launch(rank, "round_trips", 1, 1, rings.on_gpu, ROUND_TRIPS, cycles)
            rows.append(microseconds(rank, cycles, taken))
    return {name: statistics.median([row[name] for row in rows[1:]]) for name in rows[0]}


def messages(rank: ep_lib.Rank, small: Any, signal: Any, by: engine.CopyEngine) -> dict[str, float]:
    cycles = rank.xp.zeros(MESSAGES, np.int64)
    with served(1, by) as (rings, _):

        def exchange(times: int) -> float:
            ends = (int(rank.rank == 0), 1 - rank.rank)
            return launch(rank, "ping_pong", 1, 1, rings.on_gpu, small, small[4:], signal, times, *ends, cycles)

        exchange(0)  # compiles and loads it
        rank.barrier()
        taken = exchange(MESSAGES)
        rank.barrier()
    return microseconds(rank, cycles, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2048, help="of each run of the rates; a multiple of 4")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    heap_bytes = (2 * args.megabytes + 16) << 20
    given = (args.megabytes, args.runs)
    report = ep_lib.spawn(measure, 2, "cuda", heap_bytes=heap_bytes, timeout=30, transport="p2p", args=given)[0]
    own = max(report["copy_engine"].values())
    for row in report["proxy"]:
        row["share"] = max(row[name] for name in WAYS) / own
    if args.json:
        print(json.dumps(report))
        return
    for name, rate in report["copy_engine"].items():
        print(f"copy engine, {name}: {rate:.1f} GB/s")
    for row in report["proxy"]:
        rates = []
        for name in WAYS:
            wrong = "" if row[f"{name}, right"] else ", WRONG BYTES"
            rates.append(f"{name} {row[name]:.1f} GB/s ({100 * row[name] / own:.0f} %{wrong})")
        print(f"1 MB commands, {row['rings']} rings, {row['threads']} threads: {', '.join(rates)}")
    print(f"to reach: {100 * REACH_SHARE:.0f} % of the copy engine's own {own:.1f} GB/s")
    for what, name in (
        ("push, proxy, completion seen", "round_trip_us"),
        ("8 bytes + signal and the answer, by proxies", "message_and_answer_us"),
    ):
        us = report[name]
        print(f"{what}: median {us['median']:.2f} us, best {us['best']:.2f}, 99 of 100 within {us['p99']:.2f}")
    print(f"to reach: {REACH_US:g} us for the first; {report['cpus']} CPUs, load {report['load_average']:.1f}")


if __name__ == "__main__":
    main()

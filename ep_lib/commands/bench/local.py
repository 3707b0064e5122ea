"""``ep-lib bench local``: the proxy on this machine: the delay of a push, commands per second, bytes per second.

It needs no GPU: a process pushes commands into a ring in shared memory, as a kernel would, and a proxy thread of
another process takes them out. The executor then does nothing, or copies between two heaps in memory. It is the
source's ``benchmark_local``.
"""

from __future__ import annotations

import argparse
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands.bench import show, sizes
from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.require import at_least_one
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import Rings, op

SIZES = (64, 4 << 10, 64 << 10, 1 << 20)
SLOTS = 1024
_DELAYS = 16384  # pushes whose delay is measured
_IN_A_ROW = 64  # consecutive ones; the best median is reported, to exclude disturbance by other work on the cores
_PAUSE = 3e-6  # seconds between two of them: the proxy has nothing else to do
_LOOK_SECONDS = 0.1  # between two updates of the live rate
_STAGING_BYTES = 256 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_proxy_arguments(parser)
    parser.add_argument("--threads", type=int, default=1, help="proxy threads, each with a ring (default: %(default)s)")
    parser.add_argument("--staged", action="store_true", help="copy through a buffer of the host, not straight")


def add_proxy_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of both benchmarks of the proxy."""
    parser.add_argument("--bytes", type=sizes, default=SIZES, help="of a command (default: 64,4K,64K,1M)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--cpus", help="pin the proxy threads to these CPUs, such as 0,1, or to a NUMA node's: node0")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw time and rate by size (PNG, SVG or PDF)")


def run(args: argparse.Namespace) -> int:
    cpus = check_proxy_arguments(args, args.threads)
    live = Live(args.json)
    delay = measure_delay(cpus[:1])
    rate = measure_rate(cpus, args.seconds, live)
    rows = [copy_rate(size, cpus, args.seconds, args.staged, live) for size in args.bytes]
    report = {"benchmark": "local", "delay_ns": delay, "commands_per_s": rate, "staged": args.staged, "results": rows}
    show(report, args, _table(report, args.threads))
    return 0


def check_proxy_arguments(args: argparse.Namespace, threads: int) -> list[int]:
    """The CPUs of the proxy threads. Raises ArgumentError."""
    at_least_one("--threads", threads)
    if not 0 < args.seconds <= 3600:
        raise ArgumentError(f"--seconds is {args.seconds:g}; it must be above 0, at most 3600")
    if not args.cpus:
        return [-1] * threads
    node = args.cpus.removeprefix("node")
    words = node.split(",")
    if not all(word.isdecimal() for word in words):
        raise ArgumentError(f"--cpus is {args.cpus!r}; it must be numbers such as 0,1 or a node such as node0")
    if node != args.cpus and len(words) == 1:
        return (engine.cpus_of_node(int(node)) * threads)[:threads]
    cpus = [int(word) for word in words]
    if len(cpus) != threads:
        raise ArgumentError(f"--cpus names {len(cpus)} CPUs, and there are {threads} proxy threads (--threads)")
    return cpus


def row(how: str, size: int, commands: int, seconds: float) -> dict[str, Any]:
    """A row of the table and of the figure."""
    return {
        "transport": "proxy",
        "how": how,
        "bytes": size,
        "commands": commands,
        "us_one_way": seconds * 1e6 / max(1, commands),
        "gbytes_per_s": size * commands / seconds / 1e9,
    }


class Live:
    """A line on a terminal with the current rate."""

    def __init__(self, quiet: bool) -> None:
        self._is_shown = not quiet and sys.stderr.isatty()

    def watch(
        self, what: str, proxy: engine.Proxy, work: Callable[[], None], look: Callable[[], None] = lambda: None
    ) -> tuple[int, float]:
        """Calls ``work`` in another thread; returns (commands that the proxy has taken meanwhile, seconds). ``look`` is
        called now and then; its exceptions end the wait."""
        failed: list[BaseException] = []

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failed.append(error)

        before, begin = proxy.counts(), time.perf_counter()
        last, last_time = before, begin
        worker = threading.Thread(target=body, name="bench: pushes", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(_LOOK_SECONDS)
            now, now_time = proxy.counts(), time.perf_counter()
            if self._is_shown:
                millions, gbytes = (now.commands - last.commands) / 1e6, (now.bytes - last.bytes) / 1e9
                passed = now_time - last_time
                sys.stderr.write(f"\r{what}: {millions / passed:8.3f} M commands/s {gbytes / passed:8.2f} GB/s")
                sys.stderr.flush()
            last, last_time = now, now_time
            if reason := proxy.failure():
                raise BackendUnavailable(f"the proxy has given up: {reason}")
            look()
        if self._is_shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
        if failed:
            raise failed[0]
        return proxy.counts().commands - before.commands, time.perf_counter() - begin


def measure_delay(cpus: Sequence[int] = (-1,)) -> dict[str, float]:
    """The delay from a push in another process to the proxy, in ns: median and 99th percentile, and the median of the
    best consecutive pushes. Each of the two runs on a CPU of its own, if there are two."""
    available = sorted(os.sched_getaffinity(0))
    proxys = cpus[0] if cpus[0] >= 0 else available[-1]
    pushers = next((cpu for cpu in available if cpu != proxys), proxys)
    nbytes = Rings.shared_bytes(1, SLOTS)
    handle = os.memfd_create("ep_lib proxy")
    try:
        os.ftruncate(handle, nbytes)
        nothing = engine.Nothing(1, delays=_DELAYS)
        proxy = engine.Proxy(Rings(1, SLOTS, mmap.mmap(handle, nbytes)), nothing, cpus=[proxys])
        work = f"from {__name__} import push_from_here; push_from_here({handle}, {pushers})"
        command = [sys.executable, "-c", work]
        done = subprocess.run(command, pass_fds=[handle], capture_output=True, text=True, check=False)
        proxy.stop()
        if done.returncode:
            raise BackendUnavailable(f"the process that pushes commands has failed: {done.stderr.strip()}")
    finally:
        os.close(handle)
    median, late = np.percentile(nothing.delays_ns, [50, 99])
    best = np.median(nothing.delays_ns.reshape(-1, _IN_A_ROW), axis=1).min()
    return {"median": float(median), "percentile_99": float(late), "median_of_best": float(best)}


def push_from_here(handle: int, cpu: int) -> None:
    """The main function of the other process of :func:`measure_delay`."""
    os.sched_setaffinity(0, {cpu})
    rings = Rings(1, SLOTS, mmap.mmap(handle, Rings.shared_bytes(1, SLOTS)))
    engine.push(rings, 0, {}, _DELAYS, pause=_PAUSE, stamps=True)
    engine.flush(rings, 0)


def measure_rate(cpus: Sequence[int] = (-1,), seconds: float = 1.0, live: Live | None = None) -> float:
    """Commands per second of all proxy threads, with an executor that does nothing."""
    rings = Rings(len(cpus), SLOTS)
    proxy = engine.Proxy(rings, engine.Nothing(rings.count), cpus=cpus)
    return _rate(proxy, "no executor", seconds, {}, live or Live(True))[0]


def _rate(
    proxy: engine.Proxy, what: str, seconds: float, command: dict[str, int], live: Live, first: int = 1000
) -> tuple[float, int, float]:
    """(commands per second, commands, seconds) over all rings of a proxy, in about ``seconds``; stops the proxy."""

    def push(count: int) -> Callable[[], None]:
        def work() -> None:
            threads = [threading.Thread(target=_push_all, args=(proxy.rings, ring, command, count)) for ring in rings]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return work

    rings = range(proxy.rings.count)
    try:
        commands, taken = live.watch(what, proxy, push(first))
        count = max(1, int(commands / taken * seconds / len(rings)))
        commands, taken = live.watch(what, proxy, push(count))
        return commands / taken, commands, taken
    finally:
        proxy.stop()


def _push_all(rings: Rings, ring: int, command: dict[str, int], count: int) -> None:
    engine.push(rings, ring, command, count, timeout=3600)
    engine.flush(rings, ring, timeout=3600)


@dataclass
class Heaps:
    """The heaps of two ranks in this process: rank 0's commands write into rank 1's."""

    nbytes: int

    def __post_init__(self) -> None:
        self.arrays = [np.full(self.nbytes, 7 * number, np.uint8) for number in (1, 0)]
        self.addresses = [array.ctypes.data for array in self.arrays]


def copy_rate(size: int, cpus: Sequence[int], seconds: float, staged: bool, live: Live) -> dict[str, Any]:
    """A row: WRITEs of ``size`` bytes from one heap into the other. Raises BackendUnavailable if bytes are wrong."""
    heaps, rings = Heaps(max(8, size)), Rings(len(cpus), SLOTS)
    staging = _STAGING_BYTES if staged else 0
    executor = engine.Memory(rings.count, heaps.addresses, heaps.nbytes, 0, staging)
    proxy = engine.Proxy(rings, executor, cpus=cpus)
    command = {"op": op("kProxyWrite"), "peer": 1, "bytes": size}
    how = "memory, staged" if staged else "memory"
    _, commands, taken = _rate(proxy, f"{size} bytes", seconds, command, live, first=64)
    if not (heaps.arrays[1][:size] == 7).all():
        raise BackendUnavailable(f"{size} bytes that a proxy wrote are not those of their source")
    return row(how, size, commands, taken)


def _table(report: dict[str, Any], threads: int) -> str:
    delay, rate = report["delay_ns"], report["commands_per_s"]
    lines = [
        f"A push of another process, until the proxy has it: median {delay['median']:.0f} ns, 99th percentile "
        f"{delay['percentile_99']:.0f} ns; median of the best {_IN_A_ROW} in a row {delay['median_of_best']:.0f} ns",
        f"Commands that do nothing, {threads} proxy thread{'s' * (threads > 1)}: {rate / 1e6:.2f} M/s",
        "",
        f"WRITEs between two heaps in memory{', through a buffer' if report['staged'] else ''}:",
        table_of(report["results"]),
    ]
    return "\n".join(lines)


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """One line for each size."""
    lines = [f"  {'bytes':>9}  {'commands':>10}  {'us each':>9}  {'GB/s':>8}"]
    lines += [
        f"  {row['bytes']:>9}  {row['commands']:>10}  {row['us_one_way']:>9.3f}  {row['gbytes_per_s']:>8.2f}"
        for row in rows
    ]
    return "\n".join(lines)

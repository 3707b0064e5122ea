"""The part of ``ep-lib bench p2p`` that runs on GPUs: round trips over every transport, and the ceilings.

A message is ``bytes`` of data in slices, one block per slice, each followed by a signal; the answer, of the same size,
leaves when all slices have arrived. So half of a round trip is the time of one message, its signal included.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.commands.bench import Platform
from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import Array
from ep_lib.runtime.rank import Rank

SOURCE = Path(__file__).with_name("p2p.cu")
STORES_SOURCE = Path(__file__).with_name("p2p_stores.cu")  # the same for every transport, so it is compiled once
SIZES = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20, 256 << 20]
WRITE, PACKETS, COPY, STORES = "write, then signal", "packets", "copy engine", "bare stores"
GOOD_LINES = "packets, good lines"

BATCHES = 5  # the median counts; one more runs before them to warm up
SLICE_BYTES = 16 << 10  # one block for each, up to the requested number
MAX_THREADS = 1024
_BATCH_BYTES = 1 << 30  # of one batch, one way, at most: large messages have fewer rounds
_LEAST_ROUNDS = 3
_PACKET_BYTES = 8 << 10  # at most: one 64-bit word per thread
_LINE_BYTES = 128  # a line of L2: 8 packets
_LINE_STRIDE = (4 << 10) + _LINE_BYTES  # between the tried lines
_SEARCH_ROUNDS = 200  # for each line

# cudaDeviceAttr and cudaMemcpyKind
_DEVICE_TO_DEVICE = 3


@dataclass(frozen=True)
class Plan:
    """The plan of the measurement: ``sizes`` in bytes, at most ``rounds`` per batch and ``blocks`` blocks.

    ``packets`` (also into the best of ``lines`` lines) and ``ceilings`` (copy engine, bare stores) are the same for
    every transport, so they are measured once.
    """

    sizes: tuple[int, ...]
    rounds: int
    blocks: int
    packets: bool = True
    ceilings: bool = True
    lines: int = 64

    def rounds_of(self, size: int) -> int:
        return max(_LEAST_ROUNDS, min(self.rounds, _BATCH_BYTES // max(1, size)))

    def grid_of(self, size: int) -> tuple[int, int]:
        """Blocks, and threads of each: 16 bytes per thread, in whole warps."""
        blocks = max(1, min(self.blocks, size // SLICE_BYTES))
        lanes = -(-size // (16 * blocks))
        return blocks, max(32, min(MAX_THREADS, -(-lanes // 32) * 32))


def compare(worlds: list[Platform], plan: Plan, *, quiet: bool) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of all transports that work here, and the reasons why others do not. Raises BackendUnavailable if none
    works."""
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    heap_bytes = 2 * max(plan.sizes) + (32 << 20)
    for world in worlds:
        known = {row["how"] for row in rows}
        rest = replace(
            plan, packets=plan.packets and PACKETS not in known, ceilings=plan.ceilings and STORES not in known
        )
        begin = time.monotonic()
        try:
            measured = world.run(measure, 2, rest, heap_bytes=heap_bytes, quiet=quiet)[0]
        except BackendUnavailable as error:
            missing[world.network] = str(error)
            continue
        print(f"{world.network}: measured in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        rows += [{**world.facts(), **row} for row in measured]
    if not rows:
        listing = "\n  ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise BackendUnavailable(f"none of the transports asked for works here:\n  {listing}")
    return rows, missing


def measure(rank: Rank, plan: Plan) -> list[dict[str, Any]]:
    """One row per way and size: microseconds of a round trip and GB/s (10**9) of one way; None if not known."""
    test = _Pair(rank, plan)
    rows = [row for size in plan.sizes for row in test.write_and_signal(size)]
    if test.peer_address and plan.packets:
        rows += [row for size in plan.sizes if size <= _PACKET_BYTES for row in test.packets(size)]
        rows += [row for size in plan.sizes if 2 * size <= _LINE_BYTES for row in test.good_line_packets(size)]
    if test.peer_address and plan.ceilings:
        rows += [*(test.copy_engine(size) for size in plan.sizes), test.bare_stores(max(plan.sizes))]
    return rows


class _Pair:
    """Two ranks and their symmetric buffers."""

    def __init__(self, rank: Rank, plan: Plan) -> None:
        self._rank, self._plan = rank, plan
        self._peer, self._first = 1 - rank.rank, int(rank.rank == 0)
        self._both = (rank.rank, self._peer)
        largest = max(1, *plan.sizes)
        self._inbox, self._outbox = (rank.symmetric(largest, np.uint8) for _ in range(2))
        self._packets = rank.symmetric(2 * _PACKET_BYTES, np.uint8)
        self._good_lines: list[int] | None = None
        self._lines = rank.symmetric(plan.lines * _LINE_STRIDE, np.uint8)
        self._signal = rank.symmetric(1, np.uint64)
        self._received = rank.to_device(np.zeros(_PACKET_BYTES, np.uint8))
        self._totals = rank.to_device(np.zeros(2 * plan.blocks, np.int64))
        self._signals = self._packet_rounds = self._fill = 0
        self._ping = Kernel.from_file(SOURCE, "ping_pong_blocks")
        kernels = ("ping_pong_packets", "bare_stores")
        self._ping_packets, self._stores = (Kernel.from_file(STORES_SOURCE, name) for name in kernels)
        try:
            self.peer_address = rank.peer_address(self._inbox, self._peer)
        except ArgumentError:  # reachable only by a NIC
            self.peer_address = 0

    def write_and_signal(self, size: int) -> list[dict[str, Any]]:
        blocks, threads = self._plan.grid_of(size)
        rounds = self._plan.rounds_of(size)
        mark = self._mark(size)
        times = []
        for _ in range(1 + BATCHES):
            message = (self._inbox, self._outbox, size, self._signal, self._signals)
            times.append(self._time(self._ping, blocks, threads, message, rounds))
            self._signals += rounds * blocks
        self._require(self._inbox, size, mark)
        return [_row(WRITE, size, times, blocks, threads)]

    def packets(self, size: int) -> list[dict[str, Any]]:
        return self._packets_between(PACKETS, size, self._packets, self._packets)

    def good_line_packets(self, size: int) -> list[dict[str, Any]]:
        """Packets into the lines of L2, among ``plan.lines`` at each end, with the shortest round trip.

        The hardware chooses a line's place on the chip, and some are farther from the link or the polling SM.
        """
        if self._good_lines is None:
            self._good_lines = self._find_good_lines(size)
        return self._packets_between(GOOD_LINES, size, *(self._line(self._good_lines[rank]) for rank in self._both))

    def _find_good_lines(self, size: int) -> list[int]:
        """The best line of rank 0 and of rank 1: one end is varied, then the other, and rank 0's clock decides."""
        lines, rounds = [0, 0], min(self._plan.rounds, _SEARCH_ROUNDS)
        for end in (0, 1):
            times = []
            for candidate in range(self._plan.lines):
                lines[end] = candidate
                mine, theirs = (self._line(lines[rank]) for rank in self._both)
                times.append(self._packet_round(size // 8, mine, theirs, rounds))
            lines[end] = int(np.argmin(self._rank.all_gather(times)[0]))
        return lines

    def _line(self, number: int) -> Array:
        return self._lines[_LINE_STRIDE * number :]

    def _packets_between(self, how: str, size: int, mine: Array, theirs: Array) -> list[dict[str, Any]]:
        words = size // 8
        if words == 0 or size % 8:
            return []
        mark = self._mark(size)
        times = [self._packet_round(words, mine, theirs, self._plan.rounds_of(size)) for _ in range(1 + BATCHES)]
        self._require(self._received, size, mark)
        return [_row(how, size, times, 1, _threads_for(words))]

    def _packet_round(self, words: int, mine: Array, theirs: Array, rounds: int) -> float:
        sent, received = (array[: 8 * words].view(np.uint64) for array in (self._outbox, self._received))
        message = (mine, theirs, sent, received, words, self._packet_rounds)
        self._packet_rounds += rounds
        return self._time(self._ping_packets, 1, _threads_for(words), message, rounds)

    def copy_engine(self, size: int) -> dict[str, Any]:
        """Copies that the host queues one after the other, without a signal when they have arrived."""
        runtime = self._rank.xp.cuda.runtime
        stream = self._rank.xp.cuda.get_current_stream().ptr
        source = self._outbox.data.ptr

        def copy() -> None:
            runtime.memcpyAsync(self.peer_address, source, size, _DEVICE_TO_DEVICE, stream)

        return self._one_way(COPY, size, copy, 0, 0)

    def bare_stores(self, size: int) -> dict[str, Any]:
        """Plain stores, with the best number of blocks: all SMs together are not the fastest."""
        most = self._rank.sm_count or 1

        def store(blocks: int) -> None:
            self._stores.launch(self._rank, blocks, MAX_THREADS, self._inbox, self._outbox, size, self._peer)

        grids = sorted({min(most, blocks) for blocks in (16, 32, 64, most)})
        rows = [self._one_way(STORES, size, functools.partial(store, grid), grid, MAX_THREADS) for grid in grids]
        return max(rows, key=lambda row: row["gbytes_per_s"] or 0.0)

    def _one_way(self, how: str, size: int, once: Callable[[], None], blocks: int, threads: int) -> dict[str, Any]:
        """A row for one way: only rank 0 works, timed by two events."""
        rounds, times = min(50, self._plan.rounds_of(size)), []
        events = self._rank.xp.cuda.Event(), self._rank.xp.cuda.Event()
        self._rank.barrier()
        for _ in range(1 + BATCHES if self._first else 0):
            events[0].record()
            for _ in range(rounds):
                once()
            events[1].record()
            events[1].synchronize()
            times.append(self._rank.xp.cuda.get_elapsed_time(*events) * 1e3 / rounds)
        self._rank.barrier()
        one_way = statistics.median(times[1:]) if times else 0.0
        return _facts(how, size, blocks, threads) | {
            "us": None,
            "us_one_way": round(one_way, 3),
            "gbytes_per_s": _rate(size, one_way),
        }

    def _time(self, kernel: Kernel, blocks: int, threads: int, message: tuple[Any, ...], rounds: int) -> float:
        """Microseconds of a round, in the slowest block."""
        self._rank.barrier()
        kernel.launch(self._rank, blocks, threads, *message, rounds, self._peer, self._first, self._totals)
        self._rank.barrier()
        totals = self._rank.to_host(self._totals).reshape(-1, 2)[:blocks]
        return float(totals[:, 1].max()) / rounds / 1e3

    def _mark(self, size: int) -> int:
        """Fills the outbox with a number that no rank has sent before; returns the number that the peer sends."""
        self._fill += 1
        mine, theirs = ((2 * self._fill + rank) % 251 for rank in (self._rank.rank, self._peer))
        _fill(self._outbox[:size], mine)
        return theirs

    def _require(self, array: Array, size: int, value: int) -> None:
        if not bool((self._rank.to_host(array[:size]) == value).all()):
            raise RuntimeError(f"rank {self._rank.rank}: {size} bytes did not arrive as they were sent")


def _fill(array: Array, value: int) -> None:
    """Fills ``array`` with a byte, without a kernel that CuPy would have to compile first."""
    if hasattr(array.data, "memset"):
        array.data.memset(value, array.nbytes)
    else:
        array[:] = value


def _threads_for(words: int) -> int:
    return -(-words // 32) * 32


def _facts(how: str, size: int, blocks: int, threads: int) -> dict[str, Any]:
    return {"how": how, "bytes": size, "blocks": blocks, "threads": threads}


def _row(how: str, size: int, times: list[float], blocks: int, threads: int) -> dict[str, Any]:
    us = statistics.median(times[1:])
    return _facts(how, size, blocks, threads) | {
        "us": round(us, 3),
        "us_low": round(min(times[1:]), 3),
        "us_high": round(max(times[1:]), 3),
        "us_one_way": round(us / 2, 3),
        "gbytes_per_s": _rate(size, us / 2),
    }


def _rate(size: int, us: float) -> float | None:
    return round(size / us / 1e3, 3) if us > 0 else None

"""Small random programs, and an oracle that says which of their runs have a race.

The oracle knows nothing of clocks, slots and schedules. A run is known by what its reads saw: every write stores a
number of its own in each of its bytes, so each byte that is read names its writer. From that follow the edges of the
PTX memory model (PTX ISA, "Memory Consistency Model"): which release pattern synchronises with which acquire pattern,
through which read-modify-writes. Base causality order is their transitive closure with program order; causality order
adds that a write comes before what follows a read that observes it. Of two morally strong fence.sc, the one that comes
before a write, by barriers, synchronises with the one behind a read of it: Fence-SC order cannot contradict causality
order. A race is a pair of overlapping accesses of two threads, at least one a write, that causality order leaves
unordered and that are not morally strong.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ep_lib
from ep_lib import Kernel, Rank
from support import TESTS

PLAIN, VOLATILE, ATOMIC, EXCHANGE, COMPARE_SWAP, FENCE, BLOCK_BARRIER, WARP_BARRIER = range(8)
RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = range(5)
BLOCK, DEVICE, SYSTEM = range(3)
WORDS = np.dtype([("ints", np.int32, 8), ("values", np.uint64, 2)])  # struct Operation of random_program.cu


@dataclass(frozen=True)
class Op:
    kind: int
    writes: bool = False
    order: int = RELAXED
    scope: int = SYSTEM
    width: int = 0
    offset: int = 0
    shared: bool = False
    number: int = 0  # its name, and what it writes into each byte
    compare: int = 0  # COMPARE_SWAP: the number that it hopes to find
    guard: int = 0  # it is left out if the read of this number saw zero

    @property
    def touches_memory(self) -> bool:
        return self.kind <= COMPARE_SWAP

    @property
    def strong(self) -> bool:
        return self.kind in (VOLATILE, ATOMIC, EXCHANGE, COMPARE_SWAP)

    @property
    def acquires(self) -> bool:
        return self.kind >= ATOMIC and self.order in (ACQUIRE, ACQ_REL, SEQ_CST) and not self._only_writes

    @property
    def releases(self) -> bool:
        return self.kind >= ATOMIC and self.order in (RELEASE, ACQ_REL, SEQ_CST) and not self._only_reads

    @property
    def _only_writes(self) -> bool:
        return self.kind == ATOMIC and self.writes

    @property
    def _only_reads(self) -> bool:
        return self.kind == ATOMIC and not self.writes


@dataclass(frozen=True)
class Program:
    """``threads[i]`` is thread ``i % threads_per_block`` of block ``i // threads_per_block % blocks`` of its rank."""

    ranks: int
    blocks: int
    threads_per_block: int
    threads: tuple[tuple[Op, ...], ...]

    @property
    def length(self) -> int:
        return max(len(t) for t in self.threads)

    def place(self, thread: int) -> tuple[int, int]:
        """Rank, and block among all ranks' blocks."""
        block = thread // self.threads_per_block
        return block // self.blocks, block


# ---- random programs -----------------------------------------------------------------------------------------------

_SHAPES = [(2, 1, 1), (3, 1, 1), (2, 1, 2), (1, 2, 1), (1, 2, 2), (1, 1, 2), (1, 1, 4)]
_SCOPES = [(SYSTEM,), (SYSTEM,), (DEVICE, SYSTEM), (BLOCK, DEVICE, SYSTEM)]
_ORDERS_OF_FENCES = (ACQ_REL, ACQ_REL, SEQ_CST, ACQUIRE, RELEASE)
_FLAGS = 24  # bytes; data follow
_MOST_OPS = 8


class _Writer:
    """What the operations of one program have in common, and how each is drawn."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        self.shape = draw.choice(_SHAPES)
        self.scopes = draw.choice(_SCOPES)
        self.flags = [
            Op(ATOMIC, width=draw.choice((4, 4, 8)), offset=draw.choice((0, 8, 16)), shared=draw.random() < 0.2)
            for _ in range(draw.choice((1, 2)))
        ]
        self.neat = draw.random() < 0.7  # no plain access to flags, one width for each, data only in messages
        self._numbers = itertools.count(1)

    def number(self) -> int:
        return next(self._numbers)

    def fence(self, guard: int = 0) -> Op:
        order = self.draw.choice(_ORDERS_OF_FENCES)
        return Op(FENCE, order=order, scope=self.draw.choice(self.scopes), number=self.number(), guard=guard)

    def anything(self) -> Op:
        draw = self.draw
        kind = draw.choice((PLAIN, VOLATILE, ATOMIC, ATOMIC, EXCHANGE, COMPARE_SWAP, FENCE))
        if kind == FENCE or (kind == PLAIN and self.neat):
            return self.fence()
        op = replace(draw.choice(self.flags), kind=kind, writes=draw.random() < 0.5, number=self.number())
        if kind == PLAIN:
            width = draw.choice((1, 2, 4, 8))
            return replace(op, width=width, offset=draw.randrange(0, _FLAGS, width))
        if not self.neat and draw.random() < 0.2:
            width = 12 - op.width
            op = replace(op, width=width, offset=op.offset - op.offset % width)
        return self.in_order(op, draw.random() < 0.5)

    def in_order(self, op: Op, synchronises: bool) -> Op:
        """With an order and a scope that fit its kind."""
        if op.kind == VOLATILE:
            return op
        op = replace(op, scope=self.draw.choice(self.scopes), writes=op.writes or op.kind != ATOMIC)
        if not synchronises:
            return op
        if op.kind == ATOMIC:
            return replace(op, order=RELEASE if op.writes else ACQUIRE)
        return replace(op, order=self.draw.choice((ACQUIRE, RELEASE, ACQ_REL, ACQ_REL)))

    def message(self) -> list[Op]:
        """Data and a release pattern behind it; or an acquire pattern and, if it saw something, data."""
        draw = self.draw
        which = draw.randrange(len(self.flags))
        sends = draw.random() < 0.5
        by_fence = draw.random() < 0.5
        kind = draw.choice((ATOMIC, ATOMIC, VOLATILE, EXCHANGE) if by_fence else (ATOMIC, EXCHANGE))
        flag = self.in_order(replace(self.flags[which], kind=kind, writes=sends, number=self.number()), not by_fence)
        writes = sends or draw.random() < 0.2
        data = Op(
            PLAIN, writes, width=4, offset=_FLAGS + 4 * which, number=self.number(), guard=0 if sends else flag.number
        )
        fence = [self.fence(data.guard)] if by_fence else []
        return [data, *fence, flag] if sends else [flag, *fence, data]

    def program(self) -> Program:
        draw = self.draw
        ranks, blocks, per_block = self.shape
        threads: list[list[Op]] = []
        for _ in range(ranks * blocks * per_block):
            ops: list[Op] = []
            for _ in range(draw.randint(1, 4)):
                ops += self.message() if draw.random() < 0.7 else [self.anything()]
            threads.append(ops[:_MOST_OPS])
        barrier = draw.choice((BLOCK_BARRIER, WARP_BARRIER))
        for _ in range(draw.choice((0, 0, 1, 2)) if per_block > 1 else 0):
            for ops in threads:
                ops.insert(draw.randint(0, len(ops)), Op(barrier))
        written = [0, *(op.number for ops in threads for op in ops if op.writes)]
        for ops in threads:
            ops[:] = [replace(op, compare=draw.choice(written)) if op.kind == COMPARE_SWAP else op for op in ops]
        return Program(ranks, blocks, per_block, tuple(map(tuple, threads)))


def random_program(seed: int) -> Program:
    return _Writer(seed).program()


# ---- running them --------------------------------------------------------------------------------------------------


@functools.cache
def kernel() -> Kernel:
    return Kernel.from_file(TESTS / "kernels" / "random_program.cu", "random_program")


def run(rank: Rank, program: Program, runs: list[dict[int, np.ndarray]]) -> None:
    """Runs one schedule, and adds what each rank's threads saw to ``runs[-1]`` (rank 0 begins a new entry)."""
    if rank.rank == 0:
        runs.append({})
    length, per_rank = program.length, program.blocks * program.threads_per_block
    ops = np.zeros((per_rank, length), WORDS)
    for thread in range(per_rank):
        listed = program.threads[rank.rank * per_rank + thread]
        index = {op.number: i for i, op in enumerate(listed)}
        for i in range(length):
            op = listed[i] if i < len(listed) else Op(FENCE, order=RELAXED)
            guard = index[op.guard] if op.guard else -1
            ints = (op.kind, op.writes, op.order, op.scope, op.width, op.offset, op.shared, guard)
            ops[thread, i] = (ints, (_bytes_of(op.number, op.width), _bytes_of(op.compare, op.width)))
    memory = rank.symmetric(64, np.uint8)
    seen = rank.to_device(np.zeros((per_rank, length), np.uint64))
    kernel().launch(
        rank, program.blocks, program.threads_per_block, memory, rank.to_device(ops.view(np.uint64)), seen, length
    )
    runs[-1][rank.rank] = rank.to_host(seen).copy()


def _bytes_of(number: int, width: int) -> int:
    return int.from_bytes(bytes([number]) * width, "little")


# ---- the oracle ----------------------------------------------------------------------------------------------------


class Events:
    """One run: its operations in one list, who wrote what each of them read, and what happens before what."""

    def __init__(self, program: Program, seen: dict[int, np.ndarray]) -> None:
        per_rank = program.blocks * program.threads_per_block
        self.program = program
        self.ops: list[Op] = []
        self.thread: list[int] = []
        self.read: list[bytes] = []  # by operation: the numbers in the bytes that it read
        for thread, listed in enumerate(program.threads):
            saw_zero: set[int] = set()
            for i, op in enumerate(listed):
                if op.guard and op.guard in saw_zero:
                    continue
                value = int(seen[thread // per_rank][thread % per_rank, i])
                if not value:
                    saw_zero.add(op.number)
                got = (
                    b""
                    if op.kind in (PLAIN, VOLATILE, ATOMIC) and op.writes
                    else value.to_bytes(8, "little")[: op.width]
                )
                if op.kind == COMPARE_SWAP and got != bytes([op.compare]) * op.width:
                    op = replace(op, kind=ATOMIC, writes=False)  # it failed: a load
                self.ops.append(op)
                self.thread.append(thread)
                self.read.append(got if op.touches_memory else b"")
        self.count = len(self.ops)
        self.by_number = {op.number: e for e, op in enumerate(self.ops) if op.writes}
        self.before = self._closure(self._edges())
        self.seen_before = self._observed()

    def _scope_reaches(self, a: int, b: int) -> bool:
        (rank_a, block_a), (rank_b, block_b) = (self.program.place(self.thread[e]) for e in (a, b))
        return self.ops[a].scope >= (BLOCK if block_a == block_b else DEVICE if rank_a == rank_b else SYSTEM)

    def _same_memory(self, a: int, b: int) -> bool:
        one, other = self.ops[a], self.ops[b]
        if one.shared != other.shared:
            return False
        return not one.shared or self.program.place(self.thread[a]) == self.program.place(self.thread[b])

    def _same_place(self, a: int, b: int) -> bool:
        one, other = self.ops[a], self.ops[b]
        return self._same_memory(a, b) and (one.offset, one.width) == (other.offset, other.width)

    def _morally_strong(self, a: int, b: int) -> bool:
        one, other = self.ops[a], self.ops[b]
        if one.touches_memory and other.touches_memory and not self._same_place(a, b):
            return False
        if self.thread[a] == self.thread[b]:
            return True
        strong = all(op.strong or op.kind == FENCE for op in (one, other))
        return strong and self._scope_reaches(a, b) and self._scope_reaches(b, a)

    def _observes(self, read: int) -> list[int]:
        """The writes that precede this strong read in observation order."""
        found: list[int] = []
        while True:
            numbers = set(self.read[read])
            writer = self.by_number.get(numbers.pop()) if len(numbers) == 1 else None
            if writer is None or not self.ops[writer].strong or not self._morally_strong(writer, read):
                return found
            found.append(writer)
            if self.ops[writer].kind not in (EXCHANGE, COMPARE_SWAP):
                return found
            read = writer

    def _release_patterns(self, write: int) -> Iterator[int]:
        """The first operations of the release patterns that end with this write."""
        for e in range(write + 1):
            if self.thread[e] != self.thread[write] or not self.ops[e].releases:
                continue
            if e == write or self.ops[e].kind == FENCE or self._same_place(e, write):
                yield e

    def _acquire_patterns(self, read: int) -> Iterator[int]:
        """The last operations of the acquire patterns that begin with this read."""
        for e in range(read, self.count):
            if self.thread[e] != self.thread[read] or not self.ops[e].acquires:
                continue
            if e == read or self.ops[e].kind == FENCE or self._same_place(e, read):
                yield e

    def _edges(self) -> Iterator[tuple[int, int]]:
        for a, b in itertools.pairwise(range(self.count)):
            if self.thread[a] == self.thread[b]:
                yield a, b
        for read in range(self.count):
            if not self.ops[read].strong or not self.read[read]:
                continue
            for write in self._observes(read):
                for first in self._release_patterns(write):
                    for last in self._acquire_patterns(read):
                        if self.thread[first] != self.thread[last] and self._morally_strong(first, last):
                            yield first, last
        barriers: dict[tuple[int, int], list[int]] = {}
        met: dict[int, int] = {}
        for e, op in enumerate(self.ops):
            if op.kind in (BLOCK_BARRIER, WARP_BARRIER):
                nth = met[self.thread[e]] = met.get(self.thread[e], 0) + 1
                barriers.setdefault((self.program.place(self.thread[e])[1], nth), []).append(e)
        for together in barriers.values():
            yield from itertools.permutations(together, 2)
        in_block = [(a, b) for a, b in itertools.pairwise(range(self.count)) if self.thread[a] == self.thread[b]]
        in_block += [pair for together in barriers.values() for pair in itertools.permutations(together, 2)]
        met_before = self._closure(iter(in_block))
        fences = [e for e, op in enumerate(self.ops) if op.kind == FENCE and op.order == SEQ_CST]
        for read in (e for e in range(self.count) if self.ops[e].strong and self.read[e]):
            behind = [e for e in fences if e > read and self.thread[e] == self.thread[read]]
            for write, first, last in itertools.product(self._observes(read), fences, behind):
                others = self.thread[first] != self.thread[last] and met_before[first][write]
                if others and self._morally_strong(first, last):
                    yield first, last

    def _closure(self, edges: Iterator[tuple[int, int]]) -> list[list[bool]]:
        before = [[False] * self.count for _ in range(self.count)]
        for a, b in edges:
            before[a][b] = True
        for k, i in itertools.product(range(self.count), repeat=2):
            if before[i][k]:
                for j in range(self.count):
                    before[i][j] |= before[k][j]
        return before

    def _observed(self) -> set[tuple[int, int]]:
        """A write, and what a read that observes it comes before: causality order, beyond base causality."""
        reads = [e for e in range(self.count) if self.ops[e].strong and self.read[e]]
        return {(w, e) for r in reads for w in self._observes(r) for e in range(self.count) if self.before[r][e]}

    def races(self) -> list[tuple[int, int]]:
        found = []
        for a, b in itertools.combinations(range(self.count), 2):
            one, other = self.ops[a], self.ops[b]
            if self.thread[a] == self.thread[b] or not (one.touches_memory and other.touches_memory):
                continue
            if not (one.writes or other.writes) or not self._same_memory(a, b):
                continue
            if one.offset >= other.offset + other.width or other.offset >= one.offset + one.width:
                continue
            ordered = self.before[a][b] or self.before[b][a] or {(a, b), (b, a)} & self.seen_before
            if not (ordered or self._morally_strong(a, b)):
                found.append((a, b))
        return found


def judged(program: Program, seeds: int, memory: str = "sc") -> tuple[ep_lib.CheckReport, set[int], set[int]]:
    """The checker's report, the seeds that it found races with, and those whose runs have races."""
    runs: list[dict[int, Any]] = []
    options: dict[str, Any] = {"compare_values": False, "memory": memory, "reduce": False}
    report = ep_lib.check(run, program.ranks, "p2p", seeds, (program, runs), **options)
    flagged = {seed for finding in report.findings for seed in finding.seeds}
    seen = zip(report.seeds, runs[-seeds:], strict=True)
    return report, flagged, {seed for seed, events in seen if Events(program, events).races()}

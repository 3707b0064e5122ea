"""Litmus tests of PTX's memory model: generated, judged by the model's axioms, and run many at a time.

The judge knows nothing of the emulator. It goes through all candidate executions of a test (which write each read
reads, a coherence order, an order of the fence.sc) and keeps those that the axioms of the PTX ISA's chapter "Memory
Consistency Model" allow (Lustig, Sahasrabuddhe and Giroux, ASPLOS 2019, have them as formulas): coherence, Fence-SC,
atomicity, SC-per-location, causality. No test computes a value from another, so no-thin-air forbids nothing. Outcomes
that need a cycle of program order, reads-from and Fence-SC order (load buffering) are kept apart: the emulator runs one
thing after the other, and leaves them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ep_lib import Rank
from support import happens_before
from support.happens_before import WORDS

RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = range(5)
BLOCK, DEVICE, SYSTEM = range(3)
SCOPES = ("cta", "gpu", "sys")
LOCATIONS = "xyz"
LANES = 4  # threads of a block
_APART = 16  # bytes from one location to the next

Outcome = tuple[
    tuple[int, ...], tuple[int, ...]
]  # what the reads saw, thread by thread; what x, y and z hold at the end


@dataclass(frozen=True)
class Op:
    kind: str  # R, W, X (an exchange) or F (a fence)
    place: str = ""
    value: int = 0
    order: int = RELAXED
    scope: int = SYSTEM

    @property
    def reads(self) -> bool:
        return self.kind in "RX"

    @property
    def writes(self) -> bool:
        return self.kind in "WX"


@dataclass(frozen=True)
class Litmus:
    """``where``: of each thread, rank and block."""

    name: str
    threads: tuple[tuple[Op, ...], ...]
    where: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Verdict:
    """``buffered``: allowed by the model, but only with a cycle of program order, reads-from and Fence-SC order."""

    allowed: frozenset[Outcome]
    buffered: frozenset[Outcome]
    races: bool


# ---- the axioms -----------------------------------------------------------------------------------------------------


class _Judge:
    """Relations are rows of bits: ``relation[a] >> b & 1`` says whether a comes before b."""

    def __init__(self, test: Litmus) -> None:
        self.ops = [Op("W", place, 0) for place in LOCATIONS]  # what was there
        self.thread = [-1] * len(LOCATIONS)
        for thread, ops in enumerate(test.threads):
            self.ops += ops
            self.thread += [thread] * len(ops)
        self.where = test.where
        self.events = range(len(self.ops))
        self.before = [0] * len(self.ops)  # program order, and what was there before all
        for a, b in itertools.permutations(self.events, 2):
            if self.thread[b] >= 0 and (self.thread[a] < 0 or (a < b and self.thread[a] == self.thread[b])):
                self.before[a] |= 1 << b
        self.strong = [self._row(a, self._morally_strong) for a in self.events]
        self.same_place = [self._row(a, self._overlaps) for a in self.events]
        self.writes = {p: [e for e in self.events if self.ops[e].writes and self.ops[e].place == p] for p in LOCATIONS}
        self.reads = [e for e in self.events if self.ops[e].reads]
        self.fences = [e for e in self.events if self.ops[e].kind == "F" and self.ops[e].order == SEQ_CST]

    def _row(self, a: int, related: Any) -> int:
        return sum(1 << b for b in self.events if b != a and related(a, b))

    def _overlaps(self, a: int, b: int) -> bool:
        return bool(self.ops[a].place) and self.ops[a].place == self.ops[b].place

    def _morally_strong(self, a: int, b: int) -> bool:
        if self.ops[a].place and self.ops[b].place and not self._overlaps(a, b):
            return False
        if self.thread[a] < 0 or self.thread[b] < 0 or self.thread[a] == self.thread[b]:
            return True
        (rank_a, block_a), (rank_b, block_b) = self.where[self.thread[a]], self.where[self.thread[b]]
        needed = SYSTEM if rank_a != rank_b else DEVICE if block_a != block_b else BLOCK
        return min(self.ops[a].scope, self.ops[b].scope) >= needed

    def _closed(self, relation: list[int]) -> list[int]:
        relation = list(relation)
        for k in self.events:
            for a in self.events:
                if relation[a] >> k & 1:
                    relation[a] |= relation[k]
        return relation

    def _ends(self, e: int, releases: bool) -> Iterator[int]:
        """First operations of release patterns that end with this write; last ones of acquire patterns from a read."""
        orders = (RELEASE, ACQ_REL, SEQ_CST) if releases else (ACQUIRE, ACQ_REL, SEQ_CST)
        for other in self.events:
            op = self.ops[other]
            if self.thread[other] != self.thread[e] or op.order not in orders:
                continue
            ahead = self.before[other] >> e & 1 if releases else self.before[e] >> other & 1
            right_kind = op.kind == "F" or ((op.writes if releases else op.reads) and op.place == self.ops[e].place)
            if right_kind and (other == e or ahead):
                yield other

    def _observed(self, read: int, source: dict[int, int]) -> Iterator[int]:
        """The writes before this read in observation order."""
        passed = set()
        while read not in passed:
            passed.add(read)
            write = source[read]
            if not self.strong[write] >> read & 1:
                return
            yield write
            if self.ops[write].kind != "X":
                return
            read = write

    def _base(self, source: dict[int, int]) -> tuple[list[int], list[int]]:
        base, observed = list(self.before), [0] * len(self.ops)
        for read in self.reads:
            for write in self._observed(read, source):
                observed[write] |= 1 << read
                if self.thread[write] < 0:
                    continue
                for first, last in itertools.product(self._ends(write, True), self._ends(read, False)):
                    if self.thread[first] != self.thread[last] and self.strong[first] >> last & 1:
                        base[first] |= 1 << last
        return base, observed

    def executions(self) -> Iterator[tuple[Outcome, bool, bool]]:
        """The outcome of each that the axioms allow, whether it buffers loads, and whether it races."""
        choices = [[w for w in self.writes[self.ops[r].place] if w != r] for r in self.reads]
        for sources in itertools.product(*choices):
            source = dict(zip(self.reads, sources, strict=True))
            base, observed = self._base(source)
            flow = list(self.before)
            for read, write in source.items():
                flow[write] |= 1 << read
            for fences in itertools.permutations(self.fences):
                ordered, run = list(base), list(flow)
                for a, b in itertools.combinations(fences, 2):
                    if self.strong[a] >> b & 1:
                        ordered[a] |= 1 << b
                        run[a] |= 1 << b
                causes = cause = self._closed(ordered)
                cause = [row | self._any(causes, observed[e]) for e, row in enumerate(causes)]
                if any(cause[b] >> a & 1 and self.strong[a] >> b & 1 for a, b in itertools.combinations(fences, 2)):
                    continue
                run = self._closed(run)
                buffers, races = any(run[e] >> e & 1 for e in self.events), self._races(cause)
                for orders in itertools.product(*(self._orders(place) for place in LOCATIONS)):
                    if self._agrees(source, cause, orders):
                        seen = tuple(self.ops[source[r]].value for r in self.reads)
                        yield (seen, tuple(self.ops[order[-1]].value for order in orders)), buffers, races

    @staticmethod
    def _any(relation: list[int], of: int) -> int:
        row = 0
        for e, others in enumerate(relation):
            row |= others if of >> e & 1 else 0
        return row

    def _orders(self, place: str) -> Iterator[tuple[int, ...]]:
        first, *others = self.writes[place]
        for order in itertools.permutations(others):
            yield first, *order

    def _races(self, cause: list[int]) -> bool:
        for a, b in itertools.combinations(range(len(LOCATIONS), len(self.ops)), 2):
            if not self.same_place[a] >> b & 1 or not (self.ops[a].writes or self.ops[b].writes):
                continue
            if not (self.strong[a] >> b & 1 or cause[a] >> b & 1 or cause[b] >> a & 1):
                return True
        return False

    def _agrees(self, source: dict[int, int], cause: list[int], orders: tuple[tuple[int, ...], ...]) -> bool:
        coherent = [0] * len(self.ops)
        for order in orders:
            for a, b in itertools.combinations(order, 2):
                if cause[b] >> a & 1:
                    return False  # coherence
                if self.strong[a] >> b & 1 or cause[a] >> b & 1:
                    coherent[a] |= 1 << b
        coherent = self._closed(coherent)
        communicates = list(coherent)
        for read, write in source.items():
            communicates[write] |= 1 << read
            communicates[read] |= coherent[write] & ~(1 << read)  # from-read
            if cause[read] >> write & 1:
                return False  # causality
            for later in self.events:
                if not coherent[write] >> later & 1 or later == read:
                    continue
                if cause[later] >> read & 1:
                    return False  # causality
                if self.ops[read].kind == "X" and coherent[later] >> read & 1 and self.strong[later] >> read & 1:
                    return False  # atomicity
            if self.ops[read].kind == "X" and coherent[read] >> write & 1:
                return False
        program = [self.before[e] & self.same_place[e] for e in self.events]
        together = self._closed([program[e] | (communicates[e] & self.strong[e]) for e in self.events])
        return not any(together[e] >> e & 1 for e in self.events)  # SC-per-location


def judge(test: Litmus) -> Verdict:
    allowed, buffered, races = set(), set(), False
    for outcome, buffers, racy in _Judge(test).executions():
        (buffered if buffers else allowed).add(outcome)
        races |= racy
    return Verdict(frozenset(allowed), frozenset(buffered - allowed), races)


# ---- the tests ------------------------------------------------------------------------------------------------------

_TWO_THREADS = {
    "MP": ("Wx1 Wy1", "Ry Rx"),
    "SB": ("Wx1 Ry", "Wy1 Rx"),
    "LB": ("Rx Wy1", "Ry Wx1"),
    "S": ("Wx2 Wy1", "Ry Wx1"),
    "R": ("Wx1 Wy1", "Wy2 Rx"),
    "2+2W": ("Wx1 Wy2", "Wy1 Wx2"),
}
_MORE_THREADS = {
    "WRC": ("Wx1", "Rx Wy1", "Ry Rx"),
    "RWC": ("Wx1", "Rx Ry", "Wy1 Rx"),
    "ISA2": ("Wx1 Wy1", "Ry Wz1", "Rz Rx"),
    "3.2W": ("Wx1 Wy2", "Wy1 Wz2", "Wz1 Wx2"),
    "Z6.3": ("Wx1 Wy1", "Wy2 Wz1", "Rz Rx"),
    "IRIW": ("Wx1", "Wy1", "Rx Ry", "Ry Rx"),
}
_ONE_PLACE = {
    "CoRR": ("Wx1", "Rx Rx"),
    "CoRR2": ("Wx1", "Wx2", "Rx Rx", "Rx Rx"),
    "CoWW": ("Wx1 Wx2", "Rx Rx"),
    "CoWR": ("Wx1 Rx", "Wx2"),
    "CoRW": ("Rx Wx1", "Wx2"),
    "CoRW2": ("Rx Wx1", "Wx2", "Rx"),
}
_EXCHANGES = {
    "atomicity": ("Xx1", "Xx2"),
    "atomicity3": ("Xx1", "Wx2", "Xx3"),
    "MP+X": ("Wx1 Wy1", "Xy2 Rx"),
    "SB+X": ("Xx1 Ry", "Xy1 Rx"),
    "2+2W+X": ("Wx1 Wy2", "Xy1 Xx2"),
    "S+X": ("Wx2 Wy1", "Ry Xx1"),
    "sequence": ("Wx1 Wy1", "Xy2", "Ry Rx"),
}
# How a thread orders its operations: not at all, by its operations, by a fence in between.
_WAYS = ("rlx", "ra", "acq_rel", "sc")
_SPREAD = {"cta": BLOCK, "gpu": DEVICE, "sys": SYSTEM}


def _thread(text: str, way: str, scope: int) -> tuple[Op, ...]:
    ops: list[Op] = []
    for word in text.split():
        if ops and way in ("acq_rel", "sc"):
            ops.append(Op("F", order=ACQ_REL if way == "acq_rel" else SEQ_CST, scope=scope))
        op = Op(word[0], word[1], int(word[2:] or 0), scope=scope)
        orders = {"R": ACQUIRE, "W": RELEASE, "X": ACQ_REL}
        ops.append(replace(op, order=orders[op.kind]) if way == "ra" else op)
    return tuple(ops)


def _make(name: str, texts: tuple[str, ...], ways: tuple[str, ...], spread: str, scope: str) -> Litmus:
    threads = tuple(_thread(text, way, _SPREAD[scope]) for text, way in zip(texts, ways, strict=True))
    places = {"cta": lambda i: (0, 0), "gpu": lambda i: (0, i), "sys": lambda i: (i % 2, i // 2)}
    where = tuple(places[spread](i) for i in range(len(texts)))
    return Litmus(f"{name} {'/'.join(ways)} {spread} .{scope}", threads, where)


def _ways(texts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All combinations; a thread of one operation needs none."""
    yield from itertools.product(*(_WAYS if " " in text else ("rlx",) for text in texts))


def generate() -> list[Litmus]:
    """Shapes x orders x scopes x fences."""
    tests = []
    for (name, texts), spread in itertools.product(_TWO_THREADS.items(), _SPREAD):
        tests += [_make(name, texts, ways, spread, spread) for ways in _ways(texts)]
    for name, texts in {**_MORE_THREADS, **_ONE_PLACE, **_EXCHANGES}.items():
        tests += [_make(name, texts, ways, "sys", "sys") for ways in _ways(texts)]
    # Scopes that do not reach the other thread, and some that do.
    for (name, texts), (spread, scope) in itertools.product(
        _TWO_THREADS.items(), [("gpu", "cta"), ("sys", "gpu"), ("cta", "sys"), ("gpu", "sys")]
    ):
        tests += [_make(name, texts, (way, way), spread, scope) for way in _WAYS]
    return tests


# ---- running them ---------------------------------------------------------------------------------------------------


class Batch:
    """Many tests in one launch: each has its own blocks and its own locations."""

    def __init__(self, tests: list[Litmus], rounds: int) -> None:
        self.tests, self.rounds = tests, rounds
        self.seen: list[dict[Outcome, int]] = [{} for _ in tests]
        self.length = max(len(ops) for test in tests for ops in test.threads)
        self.blocks = [1, 1]  # the first of each stays empty: no grid has none
        self.places: list[list[tuple[int, int]]] = []  # of each test's threads: rank and thread of its grid
        for test in tests:
            first = list(self.blocks)
            used: dict[tuple[int, int], int] = {}
            self.places.append([])
            for rank, block in test.where:
                lane = used[rank, block] = used.get((rank, block), -1) + 1
                self.places[-1].append((rank, (first[rank] + block) * LANES + lane))
                self.blocks[rank] = max(self.blocks[rank], first[rank] + block + 1)
        self.results: list[Any] = [None, None, None]  # what each rank's threads saw, and the memory

    def words(self, rank: int) -> np.ndarray[Any, Any]:
        words = np.zeros((self.blocks[rank] * LANES, self.length), WORDS)
        words["ints"][:, :, 7] = np.arange(self.length)  # its own guard: it is left out
        for number, (test, places) in enumerate(zip(self.tests, self.places, strict=True)):
            for ops, (at, thread) in zip(test.threads, places, strict=True):
                for i, op in enumerate(ops if at == rank else ()):
                    kind = {"F": happens_before.FENCE, "X": happens_before.EXCHANGE}.get(op.kind, happens_before.ATOMIC)
                    offset = (number * len(LOCATIONS) + LOCATIONS.find(op.place)) * _APART if op.place else 0
                    words[thread, i] = ((kind, op.writes, op.order, op.scope, 4, offset, 0, -1), (op.value, 0))
        return words

    def run(self, rank: Rank) -> None:
        """``rounds`` launches. What they saw is counted when both ranks are through."""
        nbytes = len(self.tests) * len(LOCATIONS) * _APART
        words = rank.to_device(self.words(rank.rank).view(np.uint64))
        kernel = happens_before.kernel()
        memories, seen = [], []
        for _ in range(self.rounds):
            memories.append(rank.symmetric(nbytes, np.uint8, fill=0))
            seen.append(rank.to_device(np.zeros((self.blocks[rank.rank] * LANES, self.length), np.uint64)))
        for memory, saw in zip(memories, seen, strict=True):
            kernel.launch(rank, self.blocks[rank.rank], LANES, memory, words, saw, self.length)
        rank.synchronize()
        rank.barrier()
        self.results[rank.rank] = [rank.to_host(saw).copy() for saw in seen]
        if rank.rank == 0:
            self.results[2] = [rank.to_host(memory).view(np.uint32)[:: _APART // 4].copy() for memory in memories]
        rank.barrier()
        if rank.rank == 0:
            self._count()

    def _count(self) -> None:
        for saw0, saw1, memory in zip(*self.results, strict=True):
            saw, final = (saw0.tolist(), saw1.tolist()), memory.reshape(-1, len(LOCATIONS)).tolist()
            for number, (test, places) in enumerate(zip(self.tests, self.places, strict=True)):
                reads = tuple(
                    saw[at][thread][i]
                    for ops, (at, thread) in zip(test.threads, places, strict=True)
                    for i, op in enumerate(ops)
                    if op.reads
                )
                outcome = (reads, tuple(final[number]))
                self.seen[number][outcome] = self.seen[number].get(outcome, 0) + 1

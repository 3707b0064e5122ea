"""The lines that a difference between two runs of one program comes from.

A value that main returns was written to memory by a thread, from what that thread had read before. So the search begins
at the last write of a value that differs, and goes back: to the latest read of its thread that has found another value
than in the other run, to the write that this value is of, and so on. It ends where the two runs read (or keep) what two
different writes have left: there the order of threads decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ep_lib.emulator import recording, symbols
from ep_lib.emulator.findings import advice, mark_both_ends
from ep_lib.emulator.symbols import Place

_WORD = 4
_FENCE = -1
_WARP = 32
_MOST_STEPS = 64  # back from a write
_ORDERS = range(2, 6)  # of an event that is not relaxed: acquire, release, acq_rel, seq_cst
_NEAR = 16  # reads of a thread that may belong together
_READS = (recording.ACCESS, recording.NIC_READ)
_WRITES = (recording.NIC_WRITE, recording.NIC_SIGNAL)


class Origin(NamedTuple):
    """``reads``: the place at which a thread finds another value; None: the value is the last of several writes.
    ``updates``: that is an atomic. ``stored``: the place of the write, in the first run and in the other; None: none.
    ``values``: what is found in each. ``who``: the threads of these writes, as text. ``result``: where the value that
    differs is written in the end."""

    reads: Place | None
    reader: str
    updates: bool
    stored: tuple[Place | None, Place | None]
    values: tuple[int | None, int | None]
    who: tuple[str, str]
    result: Place
    early: tuple[Place, Place] | None = None  # what the reader had seen of the writer, stored before the value itself
    lanes: bool = False  # a volatile access, of a value that another lane of the warp stores

    def told(self, first: str) -> str:
        """The note of a finding; ``first``: the name of the run that is compared with, such as "seed 0"."""
        file = self.reads.file if self.reads else None
        one, other = (self._side(run, file) for run in range(2))
        if self.reads is None:
            return f"the value that differs is {other}, and with {first} {one}"
        kept = "" if self.result == self.reads else f"; what differs in the end is written in {_short(self.result)}"
        return f"{self.reads} ({self.reader}) finds {other}, and with {first} {one}{kept}"

    def _side(self, run: int, file: Path | None) -> str:
        value, stored = self.values[run], self.stored[run]
        number = f"{value}" if value is not None and value < 1 << 16 else "a value"  # else an address, a float
        if stored is None:
            return f"{number} from before any kernel's store"
        return f"{number}, stored in {_short(stored) if stored.file == file else stored} by {self.who[run]}"

    @property
    def place(self) -> str:
        """What to do, with the lines."""
        stores = [store for store in self.stored if store]
        if self.updates:
            return (
                f"the order of the atomics in {self.reads} decides: let the result not depend on it (a place from the "
                f"thread's number, sums in a fixed order)"
            )
        if self.early:
            return advice("swap", "", *self.early)
        if self.reads and self.lanes:
            again = next((store for store in stores if store.line == self.reads.line), None)
            if again:
                return (
                    f"in {self.reads}, and in each step like it: read into a variable, then __syncwarp(), then store, "
                    f"then __syncwarp()"
                )
            return advice("between_two", "__syncwarp()", stores[0], self.reads)
        if self.reads is None and self.stored[0] == self.stored[1] and self.who[0] == self.who[1]:
            return (
                f"{stores[0]} computes it from what no kernel has stored: an argument of the launch, a clock, or a "
                f"shuffle's lane that takes no part"
            )
        if self.reads is None:
            return advice("own", "", stores[0], stores[-1])
        same = "the same line in another thread"
        lines = " or ".join(dict.fromkeys(same if s == self.reads else _short(s) for s in stores))
        return f"{self.reads} may come before or after {lines}: let it wait for the store that it is to see"

    @property
    def remedy(self) -> str:
        """What is missing; empty if it is not known."""
        return "missing __syncwarp: the lanes of a warp need not run in step, volatile or not" if self.lanes else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of them, as file:line."""
        places = [self.reads, *self.stored, self.result]
        return tuple(dict.fromkeys(place.location.partition(" (in ")[0] for place in places if place))


def _short(place: Place) -> str:
    return f"line {place.line}" if place.line else "an unknown line"


class Trace:
    """A recorded run, with the names by which its accesses are found in another run: thread, line, and how often."""

    def __init__(self, events: npt.NDArray[Any], info: dict[str, Any], notes: recording.Notes, ranks: int) -> None:
        self._info, self._notes, self.events = info, notes, events
        self._heaps_bytes = ranks * info["stride"]
        self._blocks = info["blocks"]
        self.whose: dict[int, tuple[Any, ...]] = {}  # the thread of an access
        self.names: dict[int, tuple[Any, ...]] = {}
        self.by_name: dict[tuple[Any, ...], int] = {}
        self.reads_before: dict[int, tuple[list[int], int]] = {}  # of a write: its thread's reads, and how many
        self.source: dict[int, int | None] = {}  # of a read: the write that it has found
        self.last: dict[tuple[Any, ...], int] = {}  # by address: the last write
        self.marks: set[int] = set()  # addresses that are stored directly behind a fence, and read directly before one
        self._read()

    def _read(self) -> None:
        counts: Counter[tuple[Any, ...]] = Counter()
        reads: dict[Any, list[int]] = defaultdict(list)
        looks: dict[Any, dict[Any, int]] = defaultdict(dict)  # since the thread's last write; a loop's last one counts
        written: dict[int, list[int]] = defaultdict(list)
        kinds, address, size = (self.events[field].tolist() for field in ("kind", "address", "bytes"))
        flags, details, pcs = (self.events[field].tolist() for field in ("flags", "detail", "pc"))

        def name(event: int, who: Any) -> None:
            key = (who, self._spot(pcs[event]))
            counts[key] += 1
            self.names[event] = (*key, counts[key])
            self.by_name[self.names[event]] = event

        def settle(who: Any) -> None:
            for event in sorted(looks.pop(who, {}).values()):
                name(event, who)
                reads[who].append(event)

        stored, looked = set(), set()  # at a fence
        latest: dict[Any, int] = {}  # by thread: the address of a read; _FENCE
        for event, kind in enumerate(kinds):
            if kind == recording.FENCE:
                looked.add(latest.pop(self._who(event), _FENCE))
                latest[self._who(event)] = _FENCE
            if kind not in _READS and kind not in _WRITES:
                continue
            is_write = kind in _WRITES or (kind == recording.ACCESS and flags[event] & recording.WRITES)
            updates = kind == recording.NIC_SIGNAL or details[event] & recording.UPDATES
            who = self.whose[event] = self._who(event)
            if latest.pop(who, None) == _FENCE and is_write:
                stored.add(address[event])
            if not is_write:
                latest[who] = address[event]
            words = range(address[event] // _WORD, (address[event] + size[event] - 1) // _WORD + 1)
            if not is_write or updates:
                found = self._written(written[words[0]], event, bool(updates))
                if kind in _WRITES:
                    self.source[event] = found
            if not is_write:
                self.source[event] = found
                looks[who][pcs[event], address[event]] = event
                continue
            settle(who)
            name(event, who)
            self.reads_before[event] = (reads[who], len(reads[who]))
            if updates:
                self.source[event] = found
                reads[who].append(event)
            for word in words:
                written[word].append(event)
            self.last[self._place(event)] = event
        for who in list(looks):
            settle(who)
        self.marks = stored & looked

    def _written(self, writes: list[int], event: int, updates: bool) -> int | None:
        """The write that this access finds: the last one there, or under weak memory the last one of its value, and
        None for a value from before all of them."""
        begin, end, value = (int(self.events[field][event]) for field in ("address", "bytes", "value"))
        newest = None
        for write in reversed(writes[-_MOST_STEPS:]):
            at, size, stored = (int(self.events[field][write]) for field in ("address", "bytes", "value"))
            if at + size <= begin or begin + end <= at:
                continue
            newest = write if newest is None else newest
            if (at, size) != (begin, end) or stored == value or self.value(write) is None:
                return write
        is_older = self.value(event) is not None and not updates and len(writes) <= _MOST_STEPS
        return None if is_older else newest

    def _spot(self, pc: int) -> tuple[str, int]:
        spot = self._info["places"].get(str(pc))
        return (spot["image"], spot["offset"]) if spot else ("", 0)

    def place(self, event: int) -> Place:
        return symbols.find(*self._spot(int(self.events["pc"][event])))

    def _who(self, event: int) -> tuple[Any, ...]:
        row = self.events[event]
        if int(row["block"]) == recording.NO_BLOCK:
            message = self._info["messages"][int(row["thread"])]
            return tuple(message[part] for part in ("kind", "source", "target", "queue_pair"))
        block = self._blocks[int(row["block"])]
        return (block["rank"], block["ticket"], tuple(block["index"]), int(row["thread"]))

    def who(self, event: int) -> str:
        """The thread of an access, or of a NIC's the poster's rank, in words."""
        first, *_, index, thread = self._who(event)
        if not isinstance(index, tuple):
            return f"the NIC of rank {int(self.events['rank'][event])}"
        x, y, z = index
        return f"rank {first} block {x if y == z == 0 else index} thread {thread}"

    def in_one_warp(self, read: int, store: int | None) -> bool:
        """Whether a volatile read finds what another lane of its warp has stored."""
        (*block, lane), (*its_block, its_lane) = self.whose[read], self.whose[read if store is None else store]
        near = block == its_block and lane != its_lane and lane // _WARP == its_lane // _WARP
        return near and bool(self.events["flags"][read] & recording.VOLATILE)

    def _place(self, event: int) -> tuple[Any, ...]:
        """The address, as it is named in every run."""
        row = self.events[event]
        address = int(row["address"])
        in_heaps = address - self._info["heaps"]
        if 0 <= in_heaps < self._heaps_bytes:
            return ("heap", in_heaps)
        if int(row["block"]) != recording.NO_BLOCK:
            block = self._blocks[int(row["block"])]
            if 0 <= address - block["shared"] < block["shared_bytes"]:
                return (block["rank"], block["ticket"], tuple(block["index"]), address - block["shared"])
        for launched in reversed(self._notes.launches):
            for number, array in enumerate(launched.arrays):
                if array.begin <= address < array.end and launched.rank == int(row["rank"]):
                    return (launched.rank, launched.ticket, number, address - array.begin)
        return ("", address)

    def value(self, event: int | None) -> int | None:
        """What an access has found or left; None if it is not known."""
        if event is None or not self.events["detail"][event] & recording.HAS_VALUE:
            return None
        return int(self.events["value"][event])


def find(first: Trace, other: Trace, results: Sequence[tuple[Any, Any]]) -> Origin | None:
    """Where the ``other`` run begins to differ; ``results``: pairs of numbers that main has returned in the two.

    None: kernels have left the same in memory.
    """
    differ = [place for place in other.last if _final(first, place) != _final(other, place)]
    differ += [place for place in first.last if place not in other.last]
    returned = [place for place in differ if _is_of(first, other, place, results)]
    found = [origin for place in returned or differ for origin in _back(first, other, place)]
    return min(found, key=lambda each: each[0])[1] if found else None


def _final(run: Trace, place: tuple[Any, ...]) -> int | None:
    return run.value(run.last.get(place))


def _is_of(first: Trace, other: Trace, place: tuple[Any, ...], results: Sequence[tuple[Any, Any]]) -> bool:
    one, two = (_readings(run, run.last.get(place)) for run in (first, other))
    return any((one is None or a in one) and (two is None or b in two) for a, b in results)


def _readings(run: Trace, event: int | None) -> set[Any] | None:
    """What a value may be as a number; None: not known."""
    value = run.value(event)
    if event is None or value is None:
        return None
    size = int(run.events["bytes"][event])
    raw = value.to_bytes(8, "little")[:size]
    types = [t for t in ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8") if t.endswith(str(size))]
    return {np.frombuffer(raw, t)[0].item() for t in types}


def _back(first: Trace, other: Trace, place: tuple[Any, ...]) -> Iterator[tuple[int, Origin]]:
    """The origin of what differs at a place, with the event of the other run."""
    ends = (first.last.get(place), other.last.get(place))
    one, write = ends
    result = other.place(write) if write is not None else first.place(one or 0)
    for _ in range(_MOST_STEPS):
        read = None if write is None else _read_otherwise(first, other, write)
        if read is None:
            break
        before = first.by_name[other.names[read]]
        ends = (first.source[before], other.source[read])
        if ends[0] is None or ends[1] is None or first.names[ends[0]] != other.names[ends[1]]:
            origin = _origin(first, other, read, ends, (first.value(before), other.value(read)), result)
            early = _early(other, read, first, ends[0]) or _early(first, before, other, ends[1])
            lanes = any(run.in_one_warp(at, end) for run, at, end in ((first, before, ends[0]), (other, read, ends[1])))
            yield read, origin._replace(early=early, lanes=lanes)
            return
        write = ends[1]
    one, two = ends
    at = len(other.events) if two is None else two
    yield at, _origin(first, other, None, ends, (first.value(one), other.value(two)), result)


def _read_otherwise(first: Trace, other: Trace, write: int) -> int | None:
    """The latest read before this write by its thread that has found another value than in the first run."""
    reads, count = other.reads_before[write]
    own = [write] if write in other.source else []
    for read in [*own, *reversed(reads[:count])]:
        before = first.by_name.get(other.names[read])
        if before is not None and first.value(before) != other.value(read) and before in first.source:
            return read
    return None


class Torn(NamedTuple):
    """A reader has put together what a writer had stored in two rounds. ``mark``: where the writer says that a round is
    whole; ``looks``: where the reader looks at that; ``stores`` and ``reads``: of the values, first and last line."""

    mark: Place
    looks: tuple[Place, ...]
    stores: tuple[Place, Place]
    reads: tuple[Place, Place]

    @property
    def detail(self) -> str:
        """What the reader has found."""
        first, last = sorted(self.reads, key=lambda place: place.line)
        lines = f"{first} reads" if first.line == last.line else f"{first} and {_short(last)} read"
        return f"{lines} values of two rounds of the writer as if they were of one"

    @property
    def place(self) -> str:
        """What to do, with the lines."""
        first, last = sorted(self.reads, key=lambda place: place.line)
        if len(self.looks) > 1:
            return mark_both_ends(min(self.stores, key=lambda place: place.line), self.mark, self.looks[0])
        before = self.looks[0].line < first.line
        where = f"behind {last}, with __threadfence_system() before it" if before else f"before {first}, with acquire"
        return f"look at what {self.mark} stores {where}, too, and go again unless both looks find the same"

    @property
    def lines(self) -> tuple[str, ...]:
        """All of them, as file:line."""
        places = [*self.reads, *self.looks, *self.stores, self.mark]
        return tuple(dict.fromkeys(place.location.partition(" (in ")[0] for place in places))


def torn(run: Trace) -> Torn | None:
    """The last values of two rounds that a reader has taken for those of one, by a sequence lock that is not whole."""
    stores: dict[Any, list[int]] = defaultdict(list)  # by thread and address
    reads: dict[Any, list[int]] = defaultdict(list)
    address = run.events["address"].tolist()
    marked = {address[e] for e in run.whose if int(run.events["order"][e]) in _ORDERS} | run.marks
    for event in run.reads_before:
        if event not in run.source or address[event] in marked:
            stores[run.whose[event], address[event]].append(event)
    for event in sorted(run.source):
        if event not in run.reads_before and run.events["flags"][event] & recording.ATOMIC:  # others race, and say so
            reads[run.whose[event]].append(event)
    marks_of = {who_at: marks for who_at, marks in stores.items() if who_at[1] in marked}
    for reader, looks in reads.items():
        for i in range(len(looks) - 1, -1, -1):
            newer, source = looks[i], run.source[looks[i]]
            if source is None or (writer := run.whose[source]) == reader or address[newer] in marked:
                continue
            again = [store for store in stores[writer, address[newer]] if store < source]
            for older in looks[max(0, i - _NEAR) : i + _NEAR] if again else ():
                its = run.source[older]
                if its is None or run.whose[its] != writer or its >= source or address[older] in marked:
                    continue
                if address[older] == address[newer]:
                    continue
                rounds = (its, source, again[-1])
                for (who, _), marks in marks_of.items():
                    between = who == writer and any(max(its, again[-1]) < mark < source for mark in marks)
                    if between and (found := _half_marked(run, looks, (older, newer), rounds, marks)):
                        return found
    return None


def _half_marked(
    run: Trace, reads: list[int], pair: tuple[int, int], rounds: tuple[int, int, int], marks: list[int]
) -> Torn | None:
    """``rounds``: the stores of the older value and of the newer one, and that of the newer one's place before."""
    address, pcs = run.events["address"], run.events["pc"]
    looks = [read for read in reads if address[read] == address[marks[0]]]
    before, behind = [r for r in looks if r < min(pair)], [r for r in looks if r > max(pair)]
    lines = {int(pcs[read]): run.place(read) for read in looks}
    twice = len(lines) > 1
    if not looks or (twice and not (before and behind and run.source[before[-1]] == run.source[behind[0]])):
        return None
    older, newer, before_it = rounds
    if twice and sum(before_it < mark < newer for mark in marks) > 1:
        return None  # it marks the beginning too: a fence is missing
    (one, two), stores = map(run.place, pair), (run.place(older), run.place(newer))
    return Torn(run.place(marks[-1]), tuple(lines.values()), stores, (one, two))


def _early(run: Trace, read: int, later: Trace, missed: int | None) -> tuple[Place, Place] | None:
    """What the reader has seen of the thread that stores the value behind it: that store, and the one of the value."""
    store = None if missed is None else run.by_name.get(later.names[missed])
    if store is None or store < read:
        return None
    writer, reader, address = run.whose[store], run.whose[read], run.events["address"]
    for seen in range(read + 1, -1, -1):  # the other half of a load of 16 bytes comes behind
        source = run.source.get(seen)
        if source is None or run.whose[seen] != reader or address[seen] == address[read]:
            continue
        if run.whose[source] == writer and source < store:
            return run.place(source), run.place(store)
    return None


def _origin(
    first: Trace,
    other: Trace,
    read: int | None,
    ends: tuple[int | None, int | None],
    values: tuple[int | None, int | None],
    result: Place,
) -> Origin:
    one, two = ends
    stored = (None if one is None else first.place(one), None if two is None else other.place(two))
    who = ("" if one is None else first.who(one), "" if two is None else other.who(two))
    if read is None:
        return Origin(None, "", False, stored, values, who, result)
    updates = bool(other.events["detail"][read] & recording.UPDATES)
    return Origin(other.place(read), other.who(read), updates, stored, values, who, result)

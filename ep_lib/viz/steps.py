"""A recorded run as steps: the text of each, and its changes to the state of threads, messages and memory.

The state is a row of whole numbers, one for each slot: a thread (or a warp, where there are many), a message, or a few
bytes of memory. A step is a list of slots that change; the state after a step is the last keyframe with the changes
since. ``time_travel`` writes this into a page, whose JavaScript computes states in the same way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ep_lib.emulator import recording as rec
from ep_lib.emulator.recording import NamedArray, Recording

ABSENT, CAN_RUN, WAITS, DONE = 0, 1, 2, 3  # a thread's state, in the lower bits; above them, the index of its wait + 1
STATE_BITS = 2
ORDERED, RACE = 1, 2  # flags of a cell, in its lower bits; above them, its writer and the step
FLAG_BITS = 2
POSTED, READING, WRITING, COMPLETE = 1, 2, 3, 4  # a message's stage, in its lower bits; above them, the bytes written
STAGE_BITS = 3
_BEFORE = 2  # a cell's step is stored with this added: 1 is a step before the first one that is kept
_MOST_CELLS = 256  # of one array
_MOST_CELLS_OF_RANK = 1600
_MOST_THREADS = 2048  # with more, a square is a warp
_MOST_LANES = 8  # of a rank's blocks; with more, several share one
_WARP = 32
_ORDERS = ("", "relaxed", "acquire", "release", "acquire-release", "seq-cst", "volatile")
_SCOPES = ("block", "gpu", "sys")
_WAIT_KINDS = {1: "barrier", 2: "barrier", 3: "warp", 4: "warp", 5: "polls", 6: "nic"}  # State in runtime/machine.hpp


class Lane(NamedTuple):
    """A row of the picture. ``kind``: "host", "block" or "nic"."""

    rank: int
    kind: str
    label: str


class ThreadGroup(NamedTuple):
    """The threads of one block, ``unit`` of them in a slot."""

    rank: int
    label: str
    threads: int
    unit: int
    slot: int
    slots: int


class CellArray(NamedTuple):
    """An array, or the part of one that was touched: from element ``first`` on, ``cell_bytes`` in a slot."""

    rank: int
    name: str
    dtype: str
    where: str
    first: int
    item_bytes: int
    cell_bytes: int
    slot: int
    slots: int


class Mark(NamedTuple):
    """A finding: its text, its step, and the step of the first access (-1: not kept)."""

    text: str
    step: int
    first: int


@dataclass
class Steps:
    """``begin``: the number of the run's steps before these; ``total``: of all its steps. ``base`` is the state before
    the first step; step i changes the slots ``changes[offsets[i]:offsets[i + 1]]`` to the values there.

    The other columns have an entry for each step: ``lane``, ``who``, ``what`` and ``place`` are places in the tables of
    that name, ``message`` and ``touched`` (slot and number of slots, what the step reads or writes) are -1 for none.
    """

    ranks: int
    begin: int = 0
    total: int = 0
    lanes: list[Lane] = field(default_factory=list)
    groups: list[ThreadGroup] = field(default_factory=list)
    arrays: list[CellArray] = field(default_factory=list)
    omitted: int = 0  # arrays without cells
    message_slot: int = 0
    slots: int = 0
    waits: list[tuple[str, str]] = field(default_factory=list)  # kind, text
    whos: list[str] = field(default_factory=list)
    whats: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    changes: list[tuple[int, int]] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    who: list[int] = field(default_factory=list)
    what: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)  # a pc, 0 for none
    turn: list[int] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    write: list[int] = field(default_factory=list)  # 1: the step writes
    atomic: list[int] = field(default_factory=list)
    threads: list[list[int]] = field(default_factory=list)  # the slots of the acting threads
    touched: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kind)

    def state(self, step: int) -> list[int]:
        """The state after a step; -1: before the first."""
        state = list(self.base)
        for slot, value in self.changes[: self.offsets[step + 1]]:
            state[slot] = value
        return state


class _Region(NamedTuple):
    """Memory with a name. ``key`` identifies it: one of a kind on each rank, in the order of the picture."""

    key: tuple[int, int, int]  # rank, sort (0 symmetric, 1 shared, 2 other arrays), which
    begin: int
    end: int


class _Names(NamedTuple):
    name: str
    dtype: str
    item_bytes: int


class _Memory:
    """Finds the array of an address."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._offsets = [begin for begin, _ in recording.symmetric]
        self._shared: dict[int, int] = {}  # beginning -> block
        self._local: list[_Region] = []
        self._begins: list[int] = []
        self._named: dict[tuple[int, int, int], NamedArray] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}  # of local arrays, by rank and place
        for launched in recording.launches:
            for array in launched.arrays:
                region = self._in_heaps(array.begin)
                if region is not None and region.begin <= array.begin:
                    known = self._named.get((0, *region.key[1:]))
                    if known is None or (array.name and not known.name):
                        self._named[(0, *region.key[1:])] = array

    def launched(self, rank: int, ticket: int) -> None:
        """Sets the addresses of this launch's arrays from here on."""
        launched = next((one for one in self._recording.launches if (one.rank, one.ticket) == (rank, ticket)), None)
        for array in launched.arrays if launched else ():
            if self._in_heaps(array.begin) is not None or array.begin == array.end:
                continue
            number = self._numbers.setdefault((rank, array.begin, array.end), len(self._numbers))
            key = (rank, 2, number)
            known = self._named.get(key)
            if known is None or (array.name and not known.name):
                self._named[key] = array
            self._local = [r for r in self._local if r.end <= array.begin or r.begin >= array.end]
            self._local.append(_Region(key, array.begin, array.end))
            self._local.sort(key=lambda region: region.begin)
            self._begins = [region.begin for region in self._local]

    def admitted(self, number: int) -> None:
        block = self._recording.blocks[number]
        if block is not None and block.shared_bytes:
            self._shared[block.shared] = number

    def _in_heaps(self, address: int) -> _Region | None:
        recording = self._recording
        rank, offset = divmod(address - recording.heaps, recording.heap_stride)
        if not 0 <= rank < recording.ranks or not self._offsets:
            return None
        at = bisect_right(self._offsets, offset) - 1
        begin, end = recording.symmetric[at]
        if not begin <= offset < end:
            return None
        base = recording.heaps + rank * recording.heap_stride
        return _Region((rank, 0, at), base + begin, base + end)

    def find(self, address: int) -> _Region | None:
        """The array; None for memory without a name."""
        region = self._in_heaps(address)
        if region is not None:
            return region
        at = bisect_right(self._begins, address) - 1
        if at >= 0 and address < self._local[at].end:
            return self._local[at]
        for begin, number in self._shared.items():
            block = self._recording.blocks[number]
            if block is not None and begin <= address < begin + block.shared_bytes:
                return _Region((block.rank, 1, _linear(block.index)), begin, begin + block.shared_bytes)
        return None

    def names(self, key: tuple[int, int, int]) -> _Names:
        """The name of an array."""
        rank, sort, which = key
        if sort == 1:
            return _Names(f"shared memory of block {which}", "", 4)
        array = self._named.get((0, 0, which) if sort == 0 else key)
        if sort == 0 and which == 0 and self._recording.symmetric[0][0] == 0:
            return _Names("the heap's first bytes", "", 4)
        fallback = f"symmetric array {which}" if sort == 0 else f"array {which + 1} of rank {rank}"
        if array is None:
            return _Names(fallback, "", 4)
        return _Names(array.name or fallback, array.dtype, array.item_bytes)


def _linear(index: tuple[int, int, int]) -> int:
    return index[0] | index[1] << 20 | index[2] << 40


def _triple(index: tuple[int, int, int]) -> str:
    return str(index[0]) if not index[1] and not index[2] else str(tuple(index))


class _Layout:
    """The slots, found by a first walk over the kept events."""

    def __init__(self, recording: Recording, window: Sequence[int]) -> None:
        self.recording = recording
        self._first, self._last = (window[0], window[-1]) if len(window) else (0, -1)
        blocks: dict[tuple[int, int], tuple[str, int]] = {}  # rank and index: label, threads
        extents: dict[tuple[int, int, int], list[int]] = {}  # first and last byte, accesses
        memory = _Memory(recording)
        senders = set()
        for number, event in enumerate(recording.events.tolist()):
            event = _Event(*event)
            if event.kind == rec.LAUNCH:
                memory.launched(event.rank, event.value)
            elif event.kind == rec.ADMIT:
                memory.admitted(event.block)
            if not self._first <= number <= self._last:
                continue
            block = recording.blocks[event.block] if event.of_a_block else None
            if block is not None:
                place = (block.rank, _linear(block.index))
                label, threads = blocks.get(place, (f"block {_triple(block.index)}", 0))
                blocks[place] = (label, max(threads, block.threads))
            if event.of_a_nic:
                senders.add(event.rank)
            if event.bytes and event.kind in _TOUCH:
                region = memory.find(event.address)
                if region is not None:
                    begin = event.address - region.begin
                    extent = extents.setdefault(region.key, [begin, begin, 0])
                    extent[0] = min(extent[0], begin)
                    extent[1] = max(extent[1], min(begin + event.bytes, region.end - region.begin))
                    extent[2] += 1
        self.lanes: list[Lane] = []
        self.lane_of: dict[tuple[int, str, int], int] = {}
        self.groups: list[ThreadGroup] = []
        self.group_of: dict[tuple[int, int], ThreadGroup] = {}
        self.slots = 0
        unit = 1 if sum(threads for _, threads in blocks.values()) <= _MOST_THREADS else _WARP
        for rank in range(recording.ranks):
            self._add_lane(rank, "host", 0, "host")
            mine = [(index, *told) for (owner, index), told in sorted(blocks.items()) if owner == rank]
            for number, (index, label, threads) in enumerate(mine):
                together = -(-len(mine) // _MOST_LANES)  # blocks of a lane
                if number % together == 0:
                    last = mine[min(number + together, len(mine)) - 1][1]
                    name = label if together == 1 else f"{label.replace(' ', 's ')} to {last.partition(' ')[2]}"
                    self.lanes.append(Lane(rank, "block", name))
                self.lane_of[rank, "block", index] = len(self.lanes) - 1
                group = ThreadGroup(rank, label, threads, unit, self.slots, -(-threads // unit))
                self.groups.append(group)
                self.group_of[rank, index] = group
                self.slots += group.slots
            if rank in senders:
                self._add_lane(rank, "nic", 0, "NIC")
        self.message_slot = self.slots
        self.slots += len(recording.messages)
        self.arrays: list[CellArray] = []
        self.array_of: dict[tuple[int, int, int], CellArray] = {}
        self.omitted = 0
        used = Counter[int]()
        for key, (begin, end, _) in sorted(extents.items()):
            names = memory.names(key)
            if key[1] == 0 and key[2] == 0 and recording.symmetric[0][0] == 0:
                continue  # the fault record, which waits poll
            cell = names.item_bytes
            begin = begin // cell * cell
            while -(-(end - begin) // cell) > _MOST_CELLS:
                cell *= 2
            begin = begin // cell * cell
            slots = -(-(end - begin) // cell)
            if used[key[0]] + slots > _MOST_CELLS_OF_RANK:
                self.omitted += 1
                continue
            used[key[0]] += slots
            where = ("symmetric", "shared", "local")[key[1]]
            array = CellArray(
                key[0],
                names.name,
                names.dtype,
                where,
                begin // names.item_bytes,
                names.item_bytes,
                cell,
                self.slots,
                slots,
            )
            self.arrays.append(array)
            self.array_of[key] = array
            self.slots += slots

    def _add_lane(self, rank: int, kind: str, which: int, label: str) -> None:
        self.lane_of[rank, kind, which] = len(self.lanes)
        self.lanes.append(Lane(rank, kind, label))


class _Event(NamedTuple):
    """One of ``recording.EVENT``, as Python's numbers."""

    address: int
    value: int
    block: int
    thread: int
    lanes: int
    bytes: int
    pc: int
    turn: int
    kind: int
    flags: int
    order: int
    detail: int
    rank: int
    scope: int

    @property
    def of_a_nic(self) -> bool:
        return self.kind in (rec.NIC_READ, rec.NIC_WRITE, rec.NIC_SIGNAL, rec.COMPLETE)

    @property
    def of_a_block(self) -> bool:
        return self.kind < rec.ORDERED and self.kind not in _OF_HOSTS and not self.of_a_nic

    @property
    def writes(self) -> bool:
        return self.kind in (rec.NIC_WRITE, rec.NIC_SIGNAL) or (
            self.kind == rec.ACCESS and bool(self.flags & rec.WRITES)
        )


_OF_HOSTS = (rec.LAUNCH, rec.HOST_WAITED, rec.HOST_MET)
_TOUCH = (rec.ACCESS, rec.NIC_READ, rec.NIC_WRITE, rec.NIC_SIGNAL)


class _Table:
    """Texts, each once."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self._place: dict[Any, int] = {}

    def add(self, text: Any) -> int:
        at = self._place.setdefault(text, len(self.texts))
        if at == len(self.texts):
            self.texts.append(text)
        return at


def make_steps(recording: Recording, limit: int) -> Steps:
    """The steps of a run, at most ``limit``: the first ones, or those around the first finding."""
    events = recording.events
    numbers = np.flatnonzero(events["kind"] < rec.ORDERED)
    begin = 0
    if len(numbers) > limit and recording.found:
        at = int(np.searchsorted(numbers, recording.found[0].event))
        begin = max(0, min(at - limit * 3 // 4, len(numbers) - limit))
    window = numbers[begin : begin + limit].tolist()
    layout = _Layout(recording, window)
    return _Walk(recording, layout, window, begin, len(numbers)).steps


class _Walk:
    """Walks over all events, keeps the state, and records the changes of each step."""

    def __init__(self, recording: Recording, layout: _Layout, window: Sequence[int], begin: int, total: int) -> None:
        self.recording, self.layout = recording, layout
        self._memory = _Memory(recording)
        self._state = [0] * layout.slots
        self._written_by = [-1] * layout.slots  # the event that wrote a cell last
        self._writers = 2 * recording.ranks
        self._written = [0] * len(recording.messages)  # bytes
        self._threads: dict[tuple[int, int], list[int]] = {}  # by group: the state of each
        self._changed: dict[int, int] = {}
        self._whos, self._whats, self._waits = _Table(), _Table(), _Table()
        self._step_of = {event: step for step, event in enumerate(window)}
        self._now = -1  # the step
        self.steps = Steps(
            ranks=recording.ranks,
            begin=begin,
            total=total,
            lanes=layout.lanes,
            groups=layout.groups,
            arrays=layout.arrays,
            omitted=layout.omitted,
            message_slot=layout.message_slot,
            slots=layout.slots,
        )
        self._walk(window)

    def _walk(self, window: Sequence[int]) -> None:
        first, last = (window[0], window[-1]) if window else (0, -1)
        latest: tuple[_Event, int] | None = None
        for number, fields in enumerate(self.recording.events.tolist()):
            event = _Event(*fields)
            if event.kind < rec.ORDERED:
                if number > last:
                    break
                if number == first:
                    self.steps.base = list(self._state)
                    self._changed.clear()
                elif number > first:
                    self._end_step()
                self._now = self._step_of.get(number, -1)
                latest = (event, number)
                self._follow(event, number)
                if self._now >= 0:
                    self._tell(event)
            elif event.kind == rec.ORDERED:
                self._ordered(event)
            elif latest is not None:
                self._raced(latest[0], event)
        if window:
            self._end_step()
        else:
            self.steps.base = list(self._state)
        self.steps.whos, self.steps.whats = self._whos.texts, self._whats.texts
        self.steps.waits = self._waits.texts
        for found in self.recording.found:
            step = self._step_of.get(found.event)
            if step is not None:
                before = -1 if found.first is None else self._step_of.get(found.first, -1)
                self.steps.marks.append(Mark(str(found.finding), step, before))

    def _end_step(self) -> None:
        self.steps.changes += self._changed.items()
        self.steps.offsets.append(len(self.steps.changes))
        self._changed.clear()

    def _set(self, slot: int, value: int) -> None:
        if self._state[slot] != value:
            self._state[slot] = self._changed[slot] = value

    # ---- the state ---------------------------------------------------------------------------------------------------

    def _follow(self, event: _Event, number: int) -> None:
        kind = event.kind
        if kind == rec.LAUNCH:
            self._memory.launched(event.rank, event.value)
        elif kind == rec.ADMIT:
            self._memory.admitted(event.block)
            self._all_threads(event, CAN_RUN)
        elif kind == rec.FINISH:
            self._all_threads(event, DONE)
        elif kind == rec.BARRIER:
            self._all_threads(event, CAN_RUN, but=DONE)
        elif kind == rec.WAIT:
            self._some_threads(event, WAITS | self._waits.add(self._why(event)) + 1 << STATE_BITS)
        elif kind in (rec.RESUME, rec.SYNCWARP, rec.NAMED_BARRIER):
            self._some_threads(event, CAN_RUN)
        elif kind == rec.END:
            self._some_threads(event, DONE)
        elif kind == rec.POST:
            self._message(event.value, POSTED)
        elif kind == rec.NIC_READ:
            self._message(event.thread, READING)
        elif kind in (rec.NIC_WRITE, rec.NIC_SIGNAL):
            self._written[event.thread] += event.bytes if kind == rec.NIC_WRITE else 0
            self._message(event.thread, WRITING)
        elif kind == rec.COMPLETE:
            self._message(event.thread, COMPLETE)
        if event.writes:
            writer = event.rank + (0 if kind == rec.ACCESS else self.recording.ranks)
            value = ((self._now + _BEFORE) * self._writers + writer) << FLAG_BITS
            for slot in self._cells(event.address, event.bytes):
                self._set(slot, value)
                self._written_by[slot] = number

    def _message(self, message: int, stage: int) -> None:
        slot = self.layout.message_slot + message
        if stage > self._state[slot] & (1 << STAGE_BITS) - 1 or stage == WRITING:
            self._set(slot, stage | self._written[message] << STAGE_BITS)

    def _group(self, event: _Event) -> tuple[ThreadGroup, list[int]] | None:
        block = self.recording.blocks[event.block]
        if block is None:
            return None
        key = (block.rank, _linear(block.index))
        group = self.layout.group_of.get(key)
        if group is None:
            return None
        return group, self._threads.setdefault(key, [ABSENT] * group.threads)

    def _all_threads(self, event: _Event, state: int, but: int = -1) -> None:
        found = self._group(event)
        block = self.recording.blocks[event.block]
        if found is None or block is None:
            return
        group, threads = found
        for thread in range(group.threads):
            there = thread < block.threads
            if threads[thread] & 3 != but:
                threads[thread] = state if there else ABSENT
        self._show(group, threads, range(group.slots))

    def _some_threads(self, event: _Event, state: int) -> None:
        found = self._group(event)
        if found is None:
            return
        group, threads = found
        units = set()
        for thread in _threads_of(event):
            if thread < len(threads):
                threads[thread] = state
                units.add(thread // group.unit)
        self._show(group, threads, sorted(units))

    def _show(self, group: ThreadGroup, threads: Sequence[int], units: Sequence[int]) -> None:
        for unit in units:
            if group.unit == 1:
                self._set(group.slot + unit, threads[unit])
            else:
                most = Counter(threads[unit * group.unit : (unit + 1) * group.unit]).most_common(1)[0][0]
                self._set(group.slot + unit, most)

    def _cells(self, address: int, size: int) -> range:
        region = self._memory.find(address)
        array = region and self.layout.array_of.get(region.key)
        if not region or not array:
            return range(0)
        begin = address - region.begin - array.first * array.item_bytes
        first, last = begin // array.cell_bytes, (begin + size - 1) // array.cell_bytes
        return range(array.slot + max(0, first), array.slot + min(array.slots - 1, last) + 1)

    def _ordered(self, event: _Event) -> None:
        for slot in self._cells(event.address, event.bytes):
            if self._written_by[slot] == event.value:
                self._set(slot, self._state[slot] | ORDERED)

    def _raced(self, second: _Event, finding: _Event) -> None:
        if not second.bytes:
            return
        cells = self._cells(second.address, second.bytes)
        if finding.address != rec.NOBODY:
            first = _Event(*self.recording.events[finding.address].tolist())
            cells_of_first = self._cells(first.address, first.bytes) if first.bytes else range(0)
            low, high = max(cells.start, cells_of_first.start), min(cells.stop, cells_of_first.stop)
            cells = range(low, high) if low < high else cells
        for slot in cells:
            self._set(slot, self._state[slot] | RACE)

    # ---- texts -------------------------------------------------------------------------------------------------------

    def _tell(self, event: _Event) -> None:
        steps = self.steps
        steps.kind.append(event.kind)
        steps.lane.append(self._lane(event))
        steps.who.append(self._whos.add(self._who(event)))
        steps.what.append(self._whats.add(self._what(event)))
        steps.place.append(event.pc if event.pc in self.recording.places else 0)
        steps.turn.append(event.turn)
        message = event.value if event.kind == rec.POST else event.thread if event.of_a_nic else -1
        steps.message.append(message)
        steps.write.append(int(event.writes))
        steps.atomic.append(int(event.kind == rec.ACCESS and bool(event.flags & rec.ATOMIC)))
        steps.threads.append(self._acting(event))
        cells = self._cells(event.address, event.bytes) if event.bytes and event.kind in _TOUCH else range(0)
        steps.touched.append((cells.start, len(cells)) if cells else (-1, 0))

    def _acting(self, event: _Event) -> list[int]:
        found = self._group(event) if event.of_a_block else None
        if found is None or event.kind in (rec.ADMIT, rec.FINISH, rec.BARRIER):
            return []
        group, threads = found
        return sorted({group.slot + thread // group.unit for thread in _threads_of(event) if thread < len(threads)})

    def _lane(self, event: _Event) -> int:
        lanes = self.layout.lane_of
        if event.of_a_nic:
            return lanes[event.rank, "nic", 0]
        block = self.recording.blocks[event.block] if event.of_a_block else None
        if block is None:
            return lanes[max(0, event.rank), "host", 0]
        return lanes[block.rank, "block", _linear(block.index)]

    def _who(self, event: _Event) -> str:
        if event.of_a_nic:
            kind = self.recording.messages[event.thread].kind
            return f"{'TMA' if kind.startswith('bulk') else 'the NIC'} of rank {event.rank}"
        if event.kind == rec.HOST_MET:
            return "all hosts"
        block = self.recording.blocks[event.block] if event.of_a_block else None
        if block is None:
            return f"the host of rank {event.rank}"
        where = f"rank {block.rank}, block {_triple(block.index)}"
        if event.kind in (rec.ADMIT, rec.FINISH, rec.BARRIER):
            return where
        threads = list(_threads_of(event))
        if len(threads) == 1:
            return f"{where}, thread {threads[0]}"
        if threads[-1] - threads[0] + 1 == len(threads):
            return f"{where}, threads {threads[0]} to {threads[-1]}"
        return f"{where}, {len(threads)} threads of {threads[0]} to {threads[-1]}"

    def _memory_text(self, address: int, size: int) -> tuple[str, int]:
        """The array's name, and the bytes of an element."""
        region = self._memory.find(address)
        if region is None:
            return "memory without a name", 0
        names = self._memory.names(region.key)
        first = (address - region.begin) // names.item_bytes
        last = (address - region.begin + max(1, size) - 1) // names.item_bytes
        whose = f" of rank {region.key[0]}"
        if region.key[1] == 1:
            return f"{names.name}{whose} (+{address - region.begin})", names.item_bytes
        many = f"[{first}]" if first == last else f"[{first}] to [{last}]"
        return f"{names.name}{many}{whose}", names.item_bytes

    def _why(self, event: _Event) -> tuple[str, str]:
        place = self.recording.places.get(event.pc)
        at = f" ({place})" if place else ""
        text = self.recording.texts[event.order]
        if event.bytes:
            text += f" on {self._memory_text(event.address, event.bytes)[0]}, which is {event.value}"
        return _WAIT_KINDS.get(event.flags, "other"), text + at

    def _value(self, event: _Event, item_bytes: int) -> int | None:
        whole = event.detail & rec.HAS_VALUE and event.bytes == (item_bytes or 8)
        return event.value if whole else None

    def _what(self, event: _Event) -> str:
        kind = event.kind
        if kind == rec.ACCESS:
            return self._access(event)
        if event.of_a_nic or kind == rec.POST:
            return self._of_message(event)
        block = self.recording.blocks[event.block] if event.of_a_block else None
        if kind == rec.LAUNCH:
            ticket = (event.rank, event.value)
            kernels = (one.kernel for one in self.recording.launches if (one.rank, one.ticket) == ticket)
            return f"launches kernel {next(kernels, '(unknown)')}"
        if kind == rec.ADMIT and block is not None:
            return f"starts: kernel {block.kernel}, {block.threads} threads"
        if kind == rec.FENCE:
            return f"fence ({_ORDERS[event.order]}, {_SCOPES[event.scope]})"
        if kind == rec.WAIT:
            return f"wait: {self._why(event)[1]}"
        return {
            rec.BARRIER: "the last thread has come to the barrier: all go on",
            rec.NAMED_BARRIER: "go on: all have come to the barrier",
            rec.SYNCWARP: "go on: all lanes have come to __syncwarp",
            rec.RESUME: "go on",
            rec.END: "end",
            rec.FINISH: "ends",
            rec.QUIET: "quiet: what was posted is complete",
            rec.HOST_WAITED: "has waited for its kernels",
            rec.HOST_MET: "meet: a barrier of all ranks, or another collective call",
        }[kind]

    def _access(self, event: _Event) -> str:
        memory, item_bytes = self._memory_text(event.address, event.bytes)
        value = self._value(event, item_bytes)
        writes = event.flags & rec.WRITES
        if event.flags & rec.ATOMIC:
            how = f"{_ORDERS[event.order]}, {_SCOPES[event.scope]}"
            if event.detail & rec.UPDATES:
                return f"atomic update ({how}) of {memory}" + (f": it is {value} now" if value is not None else "")
            if writes:
                return f"store ({how}) to {memory}" + (f": {value}" if value is not None else "")
            return f"load ({how}) of {memory}" + (f": sees {value}" if value is not None else "")
        return f"{'write' if writes else 'read'} {memory} ({_bytes(event.bytes)})"

    def _of_message(self, event: _Event) -> str:
        number = event.value if event.kind == rec.POST else event.thread
        message = self.recording.messages[number]
        name = f"{message.kind} {message.number}"
        if event.kind == rec.POST:
            to = (
                "" if message.kind.startswith("bulk") else f" to rank {message.target}, queue pair {message.queue_pair}"
            )
            size = f" of {_bytes(message.bytes)}" if message.bytes else ""
            return f"post {name}{to}{size}"
        if event.kind == rec.COMPLETE:
            return f"{name} is complete"
        memory, _ = self._memory_text(event.address, event.bytes)
        if event.kind == rec.NIC_SIGNAL:
            return f"signal of {name}: {memory}" + (f" is {event.value} now" if event.detail & rec.HAS_VALUE else "")
        verb = "has read" if event.kind == rec.NIC_READ else "writes"
        return f"{name} {verb} {_bytes(event.bytes)}: {memory}"


def _bytes(count: int) -> str:
    return f"{count} byte{'s' if count != 1 else ''}"


def _threads_of(event: _Event) -> Iterator[int]:
    base = event.thread // _WARP * _WARP
    return (base + lane for lane in range(_WARP) if event.lanes >> lane & 1)

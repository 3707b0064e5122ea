"""The remaining work of an exhaustive check, in parts that any number of processes explore.

A part is a path of choices, from which a worker continues for some runs (``epemu::Exploration``, whose text
emulator/runtime/exploration_parts.cpp writes). If there are few parts, one is split: the places of its path with
untried choices become shared, and each alternative is a part. When the runs of one part request a choice at a shared
place, the request comes here and becomes a part of its own, unless another part covers it.

Parts are explored in rounds and taken in order, independent of the number of workers: so the report is the same, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

RUNS = 16  # runs of a part per round
PARTS = 32  # the most parts per round

_FEWEST_DRAWN, _MOST_ERROR, _GOOD_ERROR = 20, 0.35, 0.1

Key = tuple[int, ...]
_KEY_WORDS = 7
_TOUCHED_WORDS = 3


@dataclass
class _Node:
    """One choice of a path: ``epemu::Exploration::Node``, with the check's global process numbers. A process's accesses
    stay text."""

    shared: int
    is_given: int
    chosen: int
    last_thread: int
    preemptions: int
    enabled: list[int]
    todo: list[int]
    sleep: list[tuple[int, list[int]]]
    done: list[tuple[int, list[int]]]
    touched: list[int]
    looks: list[int]
    launched: int  # what preceded this event, and what it read: equal in all runs that pass here
    read: int
    data: list[int]  # options, value, options, value, ...


@dataclass
class _Place:
    """A choice that several parts share: the processes tried there, in order, and the accesses of each if it goes first
    (None: not known yet). ``parent``: the place before it, from which ``chosen`` and ``data`` lead here; ``read``: its
    known reads."""

    parent: int
    chosen: int
    read: int
    data: list[int]
    launched: int
    last_thread: int
    preemptions: int
    enabled: list[int]
    sleep: list[tuple[int, list[int]]]
    order: list[tuple[int, list[int] | None]]
    refused: list[int] = field(default_factory=list)  # processes that would exceed the preemptions
    parts: int = 0  # how many have it in their path


@dataclass
class _Part:
    """``text``: None before its first run, in which ``process`` continues from ``place``."""

    place: int
    process: int
    text: str | None
    places: list[int] = field(default_factory=list)  # that it has visited


@dataclass(frozen=True)
class Explored:
    """A worker's report after some runs of a part: see ``epemu::Exploration::Status`` and ``save``."""

    text: str
    is_done: bool
    runs: int
    redundant: int
    cut: int
    counted: int
    skipped: int
    calm: int
    most_events: int


@dataclass
class Totals:
    """Totals of all runs so far."""

    runs: int = 0
    redundant: int = 0
    cut: int = 0
    counted: int = 0
    skipped: int = 0
    calm: int = 0
    most_events: int = 0


@dataclass
class Estimate:
    """The estimated number of schedules that are not equivalent. Each random run gives an unbiased estimate
    (runtime/exploration.hpp)."""

    runs: int = 0
    total: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0  # that the random runs took
    is_hopeless: bool = False

    def add(self, told: float) -> None:
        """Adds the estimate of one run."""
        self.is_hopeless |= told < 0
        self.runs, self.total, self.squares = self.runs + 1, self.total + told, self.squares + told * told

    @property
    def error(self) -> float:
        """The relative standard error."""
        if self.runs < _FEWEST_DRAWN or not self.total:
            return math.inf
        mean = self.total / self.runs
        return math.sqrt(max(0.0, self.squares / self.runs - mean * mean) / self.runs) / mean

    @property
    def whole(self) -> float | None:
        """The estimated total; None without an estimate."""
        return None if self.is_hopeless or self.error > _MOST_ERROR else self.total / self.runs

    @property
    def is_good(self) -> bool:
        """Whether more runs would hardly improve it."""
        return self.error < _GOOD_ERROR


class Parts:
    """All parts that are left. ``preemptions``: the most of a run, None for any number."""

    def __init__(self, preemptions: int | None) -> None:
        self._preemptions = preemptions
        self._keys: list[Key] = []
        self._numbers: dict[Key, int] = {}
        self._places: dict[int, _Place] = {}
        self._parts: dict[int, _Part] = {0: _Part(-1, -1, "0 0")}
        self._next = 1  # of the next place or part
        self._classes: set[int] = set()
        self._round: list[int] = []
        self.totals = Totals()

    @property
    def explored(self) -> int:
        """The number of runs, no two of them equivalent."""
        return len(self._classes)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._parts

    def round(self) -> list[int]:
        """The parts to explore now, in the order in which to take them; all of them before the next round."""
        if not self._round:
            places: set[int] = set()
            for number, part in reversed(self._parts.items()):
                if part.text is None:
                    if part.place in places:
                        continue  # its sibling's accesses are not known yet
                    places.add(part.place)
                self._round.append(number)
            # Of several parts at one place, the first goes first: the loop met it last.
            self._round = [self._first_of(number) for number in self._round[:PARTS]]
        return list(self._round)

    def _first_of(self, number: int) -> int:
        part = self._parts[number]
        if part.text is not None:
            return number
        return next(n for n, other in self._parts.items() if other.place == part.place and other.text is None)

    def text(self, number: int) -> str:
        """The part as text, for a worker to load."""
        part = self._parts[number]
        if part.text is not None:
            return part.text
        path, nodes = self._path(part.place), []
        for at, place_number in enumerate(path):
            place = self._places[place_number]
            is_last = at + 1 == len(path)
            next_place = None if is_last else self._places[path[at + 1]]
            done = []
            for process, touches in place.order if is_last else []:
                if process == part.process:
                    break
                assert touches is not None
                done.append((process, touches))
            nodes.append(
                _Node(
                    shared=place_number,
                    is_given=int(not is_last),
                    chosen=part.process if next_place is None else next_place.chosen,
                    last_thread=place.last_thread,
                    preemptions=place.preemptions,
                    enabled=place.enabled,
                    todo=[*(process for process, _ in place.order), *place.refused],
                    sleep=place.sleep,
                    done=done,
                    touched=[],
                    looks=[],
                    launched=place.launched,
                    read=0 if next_place is None else next_place.read,
                    data=[] if next_place is None else next_place.data,
                )
            )
        return self._written(nodes)

    def take(self, number: int, told: Explored) -> None:
        """Adds a worker's report about a part of this round."""
        part = self._parts[number]
        self._round.remove(number)
        totals = self.totals
        words = iter(map(int, told.text.split()))
        nodes, first, asked, classes = self._read(words)
        totals.runs += told.runs
        totals.redundant += told.redundant
        known = len(self._classes)
        self._classes.update(classes)
        totals.redundant += len(classes) - (len(self._classes) - known)
        totals.cut += told.cut
        totals.counted += told.counted
        totals.skipped += told.skipped
        totals.calm += told.calm
        totals.most_events = max(totals.most_events, told.most_events)
        if part.text is None:
            order = self._places[part.place].order
            order[[process for process, _ in order].index(part.process)] = (part.process, first)
        for place_number, processes in asked:  # the first becomes a part, unless one of them is a part there already
            place = self._places[place_number]
            if {*place.refused, *(process for process, _ in place.order)}.isdisjoint(processes):
                self._add(place_number, processes[0])
        if told.is_done:
            del self._parts[number]
            for place_number in part.places:
                self._places[place_number].parts -= 1
                if not self._places[place_number].parts:
                    del self._places[place_number]
            return
        if len(self._parts) < PARTS:
            self._split(part, nodes)
        part.text = self._written(nodes)

    def _path(self, place_number: int) -> list[int]:
        path: list[int] = []
        while place_number >= 0:
            path.insert(0, place_number)
            place_number = self._places[place_number].parent
        return path

    def _add(self, place_number: int, process: int) -> None:
        place = self._places[place_number]
        if not self._is_within_bound(place, process):
            place.refused.append(process)
            self.totals.skipped += 1
            return
        place.order.append((process, None))
        own_path = self._path(place_number)
        self._parts[self._next] = _Part(place_number, process, None, own_path)
        self._next += 1
        for each in own_path:
            self._places[each].parts += 1

    def _is_within_bound(self, place: _Place, process: int) -> bool:
        if self._preemptions is None:
            return True
        is_preemption = (
            self._keys[process][0] == 0
            and place.last_thread >= 0
            and process != place.last_thread
            and place.last_thread in place.enabled
        )
        return place.preemptions + is_preemption <= self._preemptions

    def _split(self, part: _Part, nodes: list[_Node]) -> None:
        """Shares the places of a part from the top, until there are enough parts."""
        path = [node.shared for node in nodes if node.shared >= 0]
        last_open = next((at for at in reversed(range(len(nodes))) if _open(nodes[at])), -1)
        for at in range(len(path), min(len(nodes) - 1, last_open + 1)):  # the choice at the last place is yet to run
            if len(self._parts) >= PARTS:
                break
            node, before = nodes[at], nodes[at - 1] if at else None
            number, self._next = self._next, self._next + 1
            left, first = _open(node), [*node.touched, *node.looks]
            self._places[number] = _Place(
                parent=path[-1] if path else -1,
                chosen=-1 if before is None else before.chosen,
                read=0 if before is None else before.read,
                data=[] if before is None else list(before.data),
                launched=node.launched,
                last_thread=node.last_thread,
                preemptions=node.preemptions,
                enabled=node.enabled,
                sleep=node.sleep,
                order=[*node.done, (node.chosen, first)],
                parts=1,
            )
            path.append(number)
            part.places.append(number)
            node.shared = number
            for process in left:
                self._add(number, process)

    # ---- text -----------------------------------------------------------------------------------------------------
    def _number(self, key: Key) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return self._numbers[key]

    def _written(self, nodes: list[_Node]) -> str:
        words: list[int] = [len(self._keys)]
        for key in self._keys:
            words += key
        words.append(len(nodes))
        for node in nodes:
            words += [node.shared, node.is_given, node.chosen, node.last_thread, node.preemptions]
            for processes in (node.enabled, node.todo):
                words += [len(processes), *processes]
            for asleep in (node.sleep, node.done):
                words.append(len(asleep))
                for process, touches in asleep:
                    words += [process, len(touches) // _TOUCHED_WORDS, *touches]
            for touches in (node.touched, node.looks):
                words += [len(touches) // _TOUCHED_WORDS, *touches]
            words += [node.launched, node.read]
            words += [len(node.data) // 2, *node.data]
        return " ".join(map(str, words))

    def _read(self, words: Iterator[int]) -> tuple[list[_Node], list[int], list[tuple[int, list[int]]], list[int]]:
        """Reads the nodes, the accesses of the part's first event, the requests at shared places, and the classes of
        runs."""

        def several(size: int = 1) -> list[int]:
            return [next(words) for _ in range(next(words) * size)]

        numbers = [self._number(tuple(next(words) for _ in range(_KEY_WORDS))) for _ in range(next(words))]
        numbers.append(-1)  # of no process

        def processes() -> list[int]:
            return [numbers[each] for each in several()]

        def asleep() -> list[tuple[int, list[int]]]:
            return [(numbers[next(words)], several(_TOUCHED_WORDS)) for _ in range(next(words))]

        nodes = [
            _Node(
                shared=next(words),
                is_given=next(words),
                chosen=numbers[next(words)],
                last_thread=numbers[next(words)],
                preemptions=next(words),
                enabled=processes(),
                todo=processes(),
                sleep=asleep(),
                done=asleep(),
                touched=several(_TOUCHED_WORDS),
                looks=several(_TOUCHED_WORDS),
                launched=next(words),
                read=next(words),
                data=several(2),
            )
            for _ in range(next(words))
        ]
        first = several(_TOUCHED_WORDS)
        asked = [(next(words), processes()) for _ in range(next(words))]
        return nodes, first, asked, several()


def _open(node: _Node) -> list[int]:
    """The untried choices of a place."""
    closed = {node.chosen, *(process for process, _ in node.done), *(process for process, _ in node.sleep)}
    return [process for process in node.todo if process not in closed]

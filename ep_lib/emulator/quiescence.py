"""Explains a deadlock: which threads wait for which, which hold a lock, and which value came and went."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ep_lib.emulator import surroundings, symbols
from ep_lib.emulator.symbols import Place
from ep_lib.errors import ThreadId

_WAITED_ON = re.compile(
    r"(?:ld_\w+|wait_until_\w+|read_signal|atomic\w+)\s*\(\s*[&*]?\s*(?:\([^)]*\))?\s*([A-Za-z_]\w*)"
)
_PLAIN_WAIT = re.compile(r"while\s*\(\s*[!*(&]*(?:(?:const |volatile )*\w+ ?\*\))?\s*&?([A-Za-z_]\w*)")
COME = "what is waited for must come: a signal, a credit or a barrier"
_STORES_BACK = re.compile(r"[-+|&^]=|\+\+|--")  # what it has read, changed
_EXACTLY = re.compile(r"!=\s*(\d+|\w+)|wait_until_eq")


@dataclass(frozen=True)
class Quiescence:
    """``lines`` explain the deadlock, ``remedy`` and ``place`` say what to change; empty if unknown."""

    lines: tuple[str, ...] = ()
    remedy: str = ""
    place: str = ""


def explain(entries: Sequence[Mapping[str, Any]]) -> Quiescence:
    """Explains the waits of a report's groups of threads (runtime/report.cpp)."""
    groups = [_Group(entry) for entry in entries]
    if circle := _circle(groups):
        return _of_circle([groups[i] for i in circle])
    if groups and all(group.at_grid_barrier for group in groups):
        return _of_grid(groups)
    if late := [group for group in groups if group.behind]:
        return _of_late(late, groups)
    for group in groups:
        for look in (_kept_lock, _lost, _one_too_many, _passed):
            if found := look(group):
                return found
        if found := _before_the_barrier(group, groups):
            return found
    waiting = [g for g in groups if g.sends_later]
    if waiting and all(g.polls and g.nobody for g in groups):
        return _all_wait_first(waiting)
    return _missing(groups)


class _Group:
    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.thread = symbols.thread_of(entry)
        self.count = entry["count"]
        self.what = str(entry["what"])
        self.place = symbols.find_called(entry, entry.get("called"))
        self.at_grid_barrier = (
            "'arrived'" in self.what
            and ".sync()" in self.place.source
            and symbols.is_of_a_library(entry["image"], entry["offset"])
        )
        self.waits_for: list[int] = list(entry.get("for", ()))
        polled = entry.get("polled")
        self.polls = polled is not None
        self.nobody = bool(polled and polled["nobody"])
        self.sees = polled["sees"] if polled else 0
        self.holder = _Store(polled["holder"], polled["taken_for"]) if polled and polled["holder"] else None
        self.last = _Store(polled["last"]) if polled and polled["last"] else None
        self.lost = _Lost(**polled["lost"]) if polled and polled["lost"] else None
        self.behind = _Behind(**entry["behind"]) if entry.get("behind") else None
        self.old = (
            [
                (old["value"], symbols.find(old["at"]["image"], old["at"]["offset"]))
                for old in polled["old"]
                if old["at"]
            ]
            if polled
            else []
        )

    @property
    def who(self) -> str:
        return _and_more(self.thread, self.count)

    @property
    def sends_later(self) -> Place:
        """A line behind the wait, in the same function, that stores to the awaited variable by the same name."""
        text = self.place.source
        found = (_WAITED_ON.search(text) or _PLAIN_WAIT.search(text)) if self.polls else None
        name = found[1] if found else ""
        line = surroundings.stored_behind(self.place.file, self.place.line, name) if name else 0
        return Place(file=self.place.file, name=self.place.name, line=line) if line else Place()

    @property
    def or_for_less(self) -> str:
        """What may help in a loop."""
        again = surroundings.in_a_loop(self.place.file, self.place.line)
        return "; or wait for less, for the first rounds of a loop may need no signal" * bool(again)


class _Store:
    def __init__(self, side: Mapping[str, Any], called: Mapping[str, Any] | None = None) -> None:
        self.thread = symbols.thread_of(side)
        self.place = symbols.find_called(side, called)


class _Lost:
    """A value that ``by`` has stored and ``over`` has overwritten before another thread had looked at it."""

    def __init__(self, value: int, made: int, by: Mapping[str, Any], over: Mapping[str, Any]) -> None:
        self.value, self.made = value, made
        self.by, self.over = _Store(by), _Store(over)


class _Behind:
    """Threads that have added to a word less often than one that waits there has, ``times``."""

    def __init__(
        self, times: int, count: int, last: Mapping[str, Any] | None, first: Mapping[str, Any] | None, now: int | None
    ) -> None:
        self.times, self.count, self.now = times, count, now
        self.last = _Store(last) if last else None
        self.thread = symbols.thread_of(last or first or {})

    @property
    def who(self) -> str:
        return _and_more(self.thread, self.count)


def _and_more(thread: ThreadId, count: int) -> str:
    return str(thread) + (f" and {count - 1} more" if count > 1 else "")


def _circle(groups: Sequence[_Group]) -> list[int]:
    """Groups each of which waits for the next one, and the last one for the first; empty if there is no such circle."""
    for begin in range(len(groups)):
        way: list[int] = [begin]
        while True:
            onward = next((i for i in groups[way[-1]].waits_for if i < len(groups)), None)
            if onward is None:
                break
            if onward in way:
                return way[way.index(onward) :]
            way.append(onward)
    return []


def _of_circle(circle: Sequence[_Group]) -> Quiescence:
    lines = ["a circle, in which each waits for the next:"]
    for group, onward in zip(circle, [*circle[1:], circle[0]], strict=True):
        lines.append(f"  {group.who} ({group.place.by_way()}) waits for {_awaited(group, onward)}")
    if all(group.holder for group in circle):
        if len(circle) == 1:
            [group] = circle
            assert group.holder is not None
            place = f"give back what {group.holder.place.outer} takes"
            return Quiescence(tuple(lines[1:]), "give the lock back before it is taken again", place)
        taken = " and ".join(sorted({f"line {g.holder.place.outer.line}" for g in circle if g.holder}))
        return Quiescence(
            tuple(lines),
            "take locks in one order everywhere",
            f"take the locks of {taken} in the same order in all threads",
        )
    return Quiescence(
        tuple(lines), "every thread that a barrier or a mask names must reach it, without waiting for the others first"
    )


def _awaited(group: _Group, onward: _Group) -> str:
    if group.holder:
        same = "it holds itself" if group.thread == group.holder.thread else f"{group.holder.thread} holds"
        return f"the lock that {same}, taken in {group.holder.place.by_way()}"
    return f"{onward.who}, which {'is' if onward.count == 1 else 'are'} in {onward.place}"


def _kept_lock(group: _Group) -> Quiescence | None:
    if not group.holder or group.waits_for:
        return None
    line = (
        f"{group.who} waits for a lock ({group.place.by_way()}) that {group.holder.thread} took in "
        f"{group.holder.place.by_way()}, and that thread has ended without giving it back"
    )
    return Quiescence(
        (line,), "give the lock back on every way out of the kernel", f"give back what {group.holder.place.outer} takes"
    )


def _of_grid(groups: Sequence[_Group]) -> Quiescence:
    """All that wait do so at a barrier of the grid."""
    places = " and ".join(dict.fromkeys(str(group.place) for group in groups))
    return Quiescence(
        (f"all that wait are at the barrier of the grid in {places}: other blocks, or threads of these, have ended",),
        "each thread of each block comes to a barrier of the grid: who has nothing to do returns behind it",
        f"return only behind {places}",
    )


def _lost(group: _Group) -> Quiescence | None:
    lost = group.lost
    if lost is None or not group.last:
        return None
    by, over = lost.by, lost.over
    line = (
        f"{group.who} waits in {group.place}, and sees {group.sees}: it was {lost.value} until {over.place} made it "
        f"{lost.made}{' again' * (lost.made == lost.value)}, before another thread looked: {by.thread} had stored it "
        f"in {by.place}, and {over.thread} overwrote it"
    )
    if by.thread != over.thread and _STORES_BACK.search(over.place.source):
        return Quiescence(
            (line,),
            "one atomic that reads and writes: these read, change and store back, and one store loses the other's",
            f"atomicOr, atomicAdd or the like (_system between ranks) in {over.place}",
        )
    if by.thread != over.thread and lost.made < lost.value:
        return Quiescence(
            (line,),
            "reset a signal before anyone may send the next one (before the credit, signal or barrier that lets it), "
            "or never: let it count up, and wait for >= a value that grows with each round",
            f"reset ({over.place}) before the line that lets {by.thread} signal again ({by.place})",
        )
    if group.last.thread == group.thread:  # it takes what it finds
        return Quiescence(
            (line,),
            "an acknowledgement: who stores waits until the reader has taken the last value",
            f"before {over.place} stores, wait (acquire) for what {group.last.place} stores when it has taken the last "
            "one",
        )
    if lost.made == lost.value:
        return Quiescence(
            (line,),
            "add to a signal where several are waited for: of two that set it to the same value one counts for nothing",
            "add (red_add_release_sys, signal_add, NetSignal::kAdd) instead of storing in "
            + " and ".join(dict.fromkeys((str(by.place), str(over.place)))),
        )
    return Quiescence(
        (line,),
        "wait for >= what is needed: a value can be passed before anyone looks; or, if each value must be seen, let "
        "who stores wait for an acknowledgement of the last one",
        f"compare with < (or wait_until_ge) in {group.place}; or wait before {over.place} for an acknowledgement",
    )


def _of_late(waiting: Sequence[_Group], groups: Sequence[_Group]) -> Quiescence:
    """Threads wait at a barrier of a count that others have not come to."""
    lines, missing = [], ""
    for group in waiting:
        late = group.behind
        assert late is not None
        now = groups[late.now].place if late.now is not None else None
        has, waits = ("has", "waits") if late.count == 1 else ("have", "wait")
        where = f"{waits} in {now}" if now else f"{has} ended"
        came = f"come less often, last in {late.last.place}" if late.last else "never come"
        lines.append(
            f"{group.who} wait{'s' * (group.count == 1)} in {group.place} for all that count there: {late.who} {has} "
            f"{came}, and {where}"
        )
        comes = late.last and now and _comes_again(late.last.place, now)
        if not comes and not missing:
            missing = f"let {late.who} arrive at what {group.place} waits for" + (
                f", behind {now}" if now else ", or make its count without them"
            )
    return Quiescence(
        tuple(lines), "as many arrivals in each round as the count says: each thread that it counts comes once", missing
    )


def _comes_again(line: Place, now: Place) -> bool:
    """Whether a thread that is in the line ``now`` would come to the other one if it went on: both are in one loop."""
    near = surroundings.between(line.file, line.line, now.line) if line.file == now.file else None
    return near is not None and (bool(near.loop) or line.line > now.line)


def _one_too_many(group: _Group) -> Quiescence | None:
    """A count down to 0, as a latch's, to which one more came."""
    passed = [place for value, place in group.old if value == 0]
    if group.sees < 1 << 63 or not passed or group.last is None or group.last.place.line != group.place.line:
        return None
    line = (
        f"{group.who} waits in {group.place} for a count to be 0: it was 0 until {passed[-1]} made it "
        f"{group.sees - (1 << 64)}, before this thread looked"
    )
    return Quiescence(
        (line,),
        "a count of as many arrivals as come: more came than it was made for",
        f"make what {group.place} waits for with as many as the threads that arrive",
    )


def _passed(group: _Group) -> Quiescence | None:
    exactly = _EXACTLY.search(group.place.source)
    if not exactly or not group.old:
        return None
    wanted = int(exactly[1]) if exactly[1] and exactly[1].isdigit() else None
    values = [(value, place) for value, place in group.old if value == wanted or (wanted is None and value)]
    if not values:
        return None
    value, place = values[-1]
    line = (
        f"{group.who} waits in {group.place} for one value: it was {value} until {place} made it {group.sees}, "
        "before this thread looked"
    )
    return Quiescence(
        (line,),
        "wait for >= what is needed: a value can be passed before anyone looks",
        f"compare with < (or wait_until_ge) in {group.place}",
    )


def _before_the_barrier(group: _Group, groups: Sequence[_Group]) -> Quiescence | None:
    """One thread of a block polls, the others wait for it at a barrier, and no other thread has stored."""
    for polling in (groups[i] for i in group.waits_for if i < len(groups)):
        if polling.polls and polling.nobody and group.what.startswith("__sync"):
            line = (
                f"{group.who} are at the barrier in {group.place}, and it waits for {polling.thread}, which waits in "
                f"{polling.place} for a value that no thread has stored: no line behind that barrier can store it"
            )
            remedy = "store it before that barrier, or wait for it behind: no thread passes while one is missing"
            return Quiescence((line,), remedy, f"signal before {group.place}, or wait after it")
    return None


def _all_wait_first(groups: Sequence[_Group]) -> Quiescence:
    lines = ["a circle: each waits for a signal before it sends its own, so none is ever sent"]
    lines += [f"  {g.who} waits in {g.place}, and would signal in line {g.sends_later.line} only then" for g in groups]
    first = groups[0]
    return Quiescence(
        tuple(lines),
        f"signal first, then wait{first.or_for_less}",
        f"put the signal (line {first.sends_later.line}) before the wait ({first.place})",
    )


def _missing(groups: Sequence[_Group]) -> Quiescence:
    untouched: dict[str, list[str]] = {}
    for g in groups:
        if g.nobody and g.place:
            untouched.setdefault(str(g.place), []).append(g.who)
    lines = [
        f"no thread has stored to what {' and '.join(who)} wait{'s' * (len(who) == 1)} for in {place}: it holds what "
        "it began with"
        for place, who in untouched.items()
    ]
    for g in groups:
        if g.polls and not g.nobody and g.last and g.last.place and g.last.place.line != g.place.line:
            lines.append(
                f"what {g.who} waits for in {g.place} was last stored by {g.last.thread} in {g.last.place}: {g.sees}"
            )
    less = next((g.or_for_less for g in groups if g.nobody and g.or_for_less), "")
    return Quiescence(tuple(lines), f"{COME}{less}" if less else "")

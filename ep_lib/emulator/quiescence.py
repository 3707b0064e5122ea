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
    for group in groups:
        for found in (_kept_lock(group), _passed(group), _before_the_barrier(group, groups)):
            if found:
                return found
    waiting = [g for g in groups if g.sends_later]
    if waiting and all(g.polls and g.nobody for g in groups):
        return _all_wait_first(waiting)
    return _missing(groups)


class _Group:
    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.thread = ThreadId(entry["rank"], tuple(entry["block"]), tuple(entry["thread"]))
        self.count = entry["count"]
        self.what = str(entry["what"])
        self.place = symbols.find(entry["image"], entry["offset"])
        self.waits_for: list[int] = list(entry.get("for", ()))
        polled = entry.get("polled")
        self.polls = polled is not None
        self.nobody = bool(polled and polled["nobody"])
        self.sees = polled["sees"] if polled else 0
        self.holder = _Store(polled["holder"]) if polled and polled["holder"] else None
        self.last = _Store(polled["last"]) if polled and polled["last"] else None
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
        return str(self.thread) + (f" and {self.count - 1} more" if self.count > 1 else "")

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
    def __init__(self, side: Mapping[str, Any]) -> None:
        self.thread = ThreadId(side["rank"], tuple(side["block"]), tuple(side["thread"]))
        self.place = symbols.find(side["image"], side["offset"])


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
        lines.append(f"  {group.who} ({group.place}) waits for {_awaited(group, onward)}")
    if all(group.holder for group in circle):
        if len(circle) == 1:
            return Quiescence(tuple(lines[1:]), "give the lock back before it is taken again", "")
        taken = " and ".join(sorted({f"line {g.holder.place.line}" for g in circle if g.holder}))
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
        return f"the lock that {same}, taken in {group.holder.place}"
    return f"{onward.who}, which {'is' if onward.count == 1 else 'are'} in {onward.place}"


def _kept_lock(group: _Group) -> Quiescence | None:
    if not group.holder or group.waits_for:
        return None
    line = (
        f"{group.who} waits for a lock ({group.place}) that {group.holder.thread} took in {group.holder.place}, "
        "and that thread has ended without giving it back"
    )
    return Quiescence(
        (line,), "give the lock back on every way out of the kernel", f"give back what {group.holder.place} takes"
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

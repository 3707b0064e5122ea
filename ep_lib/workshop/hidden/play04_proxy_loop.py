"""The other half of ex04_proxy_loop.py, in the child: a kernel that fills slots the moment it may, and a NIC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ep_lib.workshop.grader.process.far import Guest


class Slot:
    """A slot, which the proxy can only look at. The kernel writes commands into it, in place."""

    OPEN = ("words", "number")

    def __init__(self) -> None:
        self._words, self._number = [0, 0, 0], 0

    @property
    def words(self) -> list[int]:
        return self._words

    @words.setter
    def words(self, _: Any) -> None:
        raise AttributeError("the words of a slot are the kernel's, which overwrites them in place: copy them")

    @property
    def number(self) -> int:
        return self._number

    def write(self, command: list[int], number: int) -> None:
        self._words[:] = command
        self._number = number


class Ring:
    """The ring as the proxy sees it, and the kernel, which fills a slot as soon as it is free."""

    OPEN = ("taken", "completed")
    FIXED = ("slots",)

    def __init__(self, slots: int, taken: int, salt: int, events: list[list[Any]]) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self._head = self._taken = taken
        self._completed, self._salt, self._events = 0, salt, events
        self._unnumbered = set[int]()

    @property
    def taken(self) -> int:
        return self._taken

    @taken.setter
    def taken(self, value: int) -> None:
        self._events.append(["taken", int(value)])
        self._taken = int(value)
        self._fill()

    @property
    def completed(self) -> int:
        return self._completed

    @completed.setter
    def completed(self, value: int) -> None:
        self._events.append(["completed", int(value)])
        self._completed = int(value)

    def push(self, count: int, *late: int) -> None:
        """Adds ``count`` commands. The numbers of those in ``late`` come when :meth:`number` is called: the words of a
        command are there before its number."""
        self._head += count
        self._unnumbered.update(late)
        self._fill()

    def number(self, command: int) -> None:
        self._unnumbered.discard(command)
        self._fill()

    def command(self, number: int) -> list[int]:
        return [self._salt + number, 3 * number, number % 7]

    def _fill(self) -> None:
        """Writes pushed commands for which there is room into their slots, in place, as a kernel does."""
        for number in range(self._taken, min(self._head, self._taken + len(self.slots))):
            slot = self.slots[number % len(self.slots)]
            if slot.number != number + 1:
                slot.write(self.command(number), slot.number if number in self._unnumbered else number + 1)


class Nic:
    """The NIC as the proxy sees it, the number of commands that it still takes, and those that it has done."""

    OPEN = ("post", "poll")

    def __init__(self, events: list[list[Any]]) -> None:
        self.room, self.finished, self._events = 1 << 30, list[int](), events

    def post(self, number: int, words: Sequence[int]) -> bool:
        if self.room == 0:
            self._events.append(["full", int(number)])
            return False
        self.room -= 1
        self._events.append(["post", int(number), [int(word) for word in words]])
        return True

    def poll(self) -> list[int]:
        told, self.finished = self.finished, []
        return told


def run(
    piece: Guest, slots: int, most: int, salt: int, batch: Sequence[int], steps: Sequence[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """``batch``: numbers that were taken before. Steps: ("push", count, *late), ("fill", number), ("room", count),
    ("finish", numbers), ("leave",), or a method of Proxy. ("leave",): the batch becomes empty, as if all was posted.

    Returns for each method that was called: what it returned, what happened, the commands in the batch and the numbers
    in done after it.
    """
    events: list[list[Any]] = []
    seen: list[dict[str, Any]] = []
    ring, nic = Ring(slots, len(batch), salt, events), Nic(events)
    for slot in ring.slots:
        piece.share(slot.words)  # code that does not copy the words of a slot then has those of a later command
    proxy = piece.make("Proxy", ring, nic, most)
    proxy.set("batch", [(number, ring.command(number)) for number in batch])
    for what, *arguments in steps:
        if what == "push":
            ring.push(*arguments)
        elif what == "fill":
            ring.number(arguments[0])
        elif what == "room":
            nic.room = arguments[0]
        elif what == "finish":
            nic.finished.extend(arguments[0])
        elif what == "leave":
            proxy.set("batch", [])
        else:
            returned = proxy.call(what, may_be_none=True)
            left = [(int(number), [int(word) for word in words]) for number, words in proxy.get("batch")]
            done = sorted(int(number) for number in proxy.get("done"))
            told = None if returned is None else int(returned)
            seen.append({"returned": told, "events": events[:], "left": left, "done": done})
            events.clear()
    return seen

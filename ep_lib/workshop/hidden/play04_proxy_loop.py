"""The other half of ex04_proxy_loop.py, in the child: a kernel that fills slots the moment it may, and a NIC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class _Slot:
    def __init__(self) -> None:
        self.words = [0, 0, 0]
        self.number = 0


class _Ring:
    """The kernel has pushed ``head`` commands of ``pushed``; those in ``late`` are filled in only when told."""

    def __init__(self, slots: int, salt: int, tell: Callable[..., None]) -> None:
        self.slots = [_Slot() for _ in range(slots)]
        self._salt, self._tell = salt, tell
        self._taken = self._completed = 0
        self.head = 0
        self.late: set[int] = set()

    @property
    def taken(self) -> int:
        return self._taken

    @taken.setter
    def taken(self, value: int) -> None:
        self._tell("taken", int(value))
        self._taken = int(value)
        self.fill()

    @property
    def completed(self) -> int:
        return self._completed

    @completed.setter
    def completed(self, value: int) -> None:
        self._tell("completed", int(value))
        self._completed = int(value)

    def fill(self) -> None:
        """Whatever has room and was pushed: in place, as a kernel does."""
        for number in range(self._taken, min(self.head, self._taken + len(self.slots))):
            slot = self.slots[number % len(self.slots)]
            if number not in self.late and slot.number != number + 1:
                slot.words[:] = [self._salt + number, 3 * number, number % 7]
                slot.number = number + 1


class _Nic:
    def __init__(self, tell: Callable[..., None]) -> None:
        self.room = 1 << 30
        self._tell = tell
        self._finished: list[int] = []

    def post(self, number: int, words: Sequence[int]) -> bool:
        if self.room == 0:
            self._tell("full", int(number))
            return False
        self.room -= 1
        self._tell("post", int(number), [int(word) for word in words])
        return True

    def finish(self, numbers: Sequence[int]) -> None:
        self._finished += numbers

    def poll(self) -> list[int]:
        finished, self._finished = self._finished, []
        return finished


class Kept:
    """What has happened, out of the learner's reach."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []
        self._events: list[list[Any]] = []

    def happened(self, *event: Any) -> None:
        self._events.append(list(event))

    def ended(self, returned: int | None, left: list[int]) -> None:
        self._seen.append({"returned": returned, "events": self._events, "left": left})
        self._events = []

    def seen(self, _: Any) -> list[dict[str, Any]]:
        """For each method that was called: what it returned, what happened, the numbers in the batch after it."""
        return self._seen


def run(
    piece: Any,
    ask: Callable[..., Any],
    slots: int,
    most: int,
    salt: int,
    batch: Sequence[int],
    steps: Sequence[tuple[Any, ...]],
) -> None:
    """``batch``: numbers that were taken before. Steps: ("push", count, late), ("fill", number), ("room", count),
    ("finish", numbers), or a method of Proxy."""
    tell = partial(ask, "happened")
    ring, nic = _Ring(slots, salt, tell), _Nic(tell)
    proxy = piece.Proxy(ring, nic, most)
    ring.head = len(batch)
    ring._taken = len(batch)
    proxy.batch = [(number, [salt + number, 3 * number, number % 7]) for number in batch]
    for what, *arguments in steps:
        if what == "push":
            ring.head += arguments[0]
            ring.late |= set(arguments[1])
            ring.fill()
        elif what == "fill":
            ring.late.discard(arguments[0])
            ring.fill()
        elif what == "room":
            nic.room = arguments[0]
        elif what == "finish":
            nic.finish(arguments[0])
        else:
            returned = getattr(proxy, what)()
            left = [int(number) for number, _ in proxy.batch]
            ask("ended", None if returned is None else int(returned), left)

"""The other half of ex04_proxy_loop.py, in the child: a kernel that fills slots the moment it may, and a NIC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


# The ring and the NIC have what the piece's description says, and no attribute that a real one does not have: what the
# test knows about them is in variables of functions.
def _slot() -> tuple[Any, Callable[[list[int], int], None]]:
    """A slot, which the proxy can only look at, and what writes a command into it, in place."""
    words, number = [0, 0, 0], 0

    class Slot:
        @property
        def words(self) -> list[int]:
            return words

        @words.setter
        def words(self, _: Any) -> None:
            raise AttributeError("the words of a slot are the kernel's, which overwrites them in place: copy them")

        @property
        def number(self) -> int:
            return number

    def write(command: list[int], its_number: int) -> None:
        nonlocal number
        words[:] = command
        number = its_number

    return Slot(), write


class _Kernel(NamedTuple):
    """The ring as the proxy sees it, and what the kernel does there."""

    ring: Any
    push: Callable[[int, Sequence[int]], None]
    number: Callable[[int], None]


def _kernel(slots: int, taken: int, salt: int, tell: Callable[..., None]) -> _Kernel:
    """``push(count, late)``: so many commands more. It fills a slot the moment it may, but the numbers of those in
    ``late`` come when ``number`` says so, as the words of a command are there before its number."""
    head, completed, unnumbered = taken, 0, set[int]()
    all_slots, write = zip(*(_slot() for _ in range(slots)), strict=True)

    class Ring:
        def __init__(self) -> None:
            self.slots = all_slots

        @property
        def taken(self) -> int:
            return taken

        @taken.setter
        def taken(self, value: int) -> None:
            nonlocal taken
            tell("taken", int(value))
            taken = int(value)
            fill()

        @property
        def completed(self) -> int:
            return completed

        @completed.setter
        def completed(self, value: int) -> None:
            nonlocal completed
            tell("completed", int(value))
            completed = int(value)

    ring = Ring()

    def fill() -> None:
        """Whatever has room and was pushed: in place, as a kernel does."""
        for number in range(taken, min(head, taken + slots)):
            at = number % slots
            if (was := all_slots[at].number) != number + 1:
                write[at]([salt + number, 3 * number, number % 7], was if number in unnumbered else number + 1)

    def push(count: int, late: Sequence[int]) -> None:
        nonlocal head
        head += count
        unnumbered.update(late)
        fill()

    def number(command: int) -> None:
        unnumbered.discard(command)
        fill()

    return _Kernel(ring, push, number)


class _Network(NamedTuple):
    """The NIC as the proxy sees it; how many commands it still takes; what it has done."""

    nic: Any
    has_room: Callable[[int], None]
    finish: Callable[[Sequence[int]], None]


def _network(tell: Callable[..., None]) -> _Network:
    room, finished = 1 << 30, list[int]()

    class Nic:
        def post(self, number: int, words: Sequence[int]) -> bool:
            nonlocal room
            if room == 0:
                tell("full", int(number))
                return False
            room -= 1
            tell("post", int(number), [int(word) for word in words])
            return True

        def poll(self) -> list[int]:
            nonlocal finished
            told, finished = finished, []
            return told

    def has_room(count: int) -> None:
        nonlocal room
        room = count

    return _Network(Nic(), has_room, lambda numbers: finished.extend(numbers))


class Kept:
    """What has happened, out of the learner's reach."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []
        self._events: list[list[Any]] = []

    def happened(self, *event: Any) -> None:
        self._events.append(list(event))

    def ended(self, returned: int | None, left: list[int], done: list[int]) -> None:
        self._seen.append({"returned": returned, "events": self._events, "left": left, "done": done})
        self._events = []

    def seen(self, _: Any) -> list[dict[str, Any]]:
        """For each method that was called: what it returned, what happened, the numbers in the batch and in done
        after it."""
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

    def tell(*event: Any) -> None:
        ask("happened", *event)

    kernel, network = _kernel(slots, len(batch), salt, tell), _network(tell)
    proxy = piece.Proxy(kernel.ring, network.nic, most)
    proxy.batch = [(number, [salt + number, 3 * number, number % 7]) for number in batch]
    for what, *arguments in steps:
        if what == "push":
            kernel.push(*arguments)
        elif what == "fill":
            kernel.number(arguments[0])
        elif what == "room":
            network.has_room(arguments[0])
        elif what == "finish":
            network.finish(arguments[0])
        else:
            returned = getattr(proxy, what)()
            left = [int(number) for number, _ in proxy.batch]
            done = sorted(int(number) for number in proxy.done)
            ask("ended", None if returned is None else int(returned), left, done)

"""The other half of ex02_registration.py, in the child: steps on the learner's cache, and what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ep_lib.errors import EpError, NotSupportedError

FIRST_NUMBER = 101  # of the registrations that are there at the beginning


class Kept:
    """Gives registrations the numbers from ``first`` on, and notes what has happened, out of the learner's reach."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._seen: list[dict[str, Any]] = []
        self._events: list[tuple[Any, ...]] = []

    def register(self, address: int, nbytes: int) -> int:
        self._events.append(("register", self._next, address, nbytes))
        self._next += 1
        return self._next - 1

    def deregister(self, number: int) -> None:
        self._events.append(("deregister", number))

    def ended(self, returned: int | None, users: int | None, error: str | None, known: list[tuple[int, int]]) -> None:
        step = {"returned": returned, "users": users, "error": error, "events": self._events, "known": known}
        self._seen.append(step)
        self._events = []

    def seen(self, _: Any) -> list[dict[str, Any]]:
        """For each step: what was registered and deregistered, the number returned (or None), the error if any,
        and number and users of all that are known."""
        return self._seen


def run(
    piece: Any,
    ask: Callable[..., Any],
    idle_bytes: int,
    held: Sequence[tuple[int, int, int]],
    steps: Sequence[tuple[Any, ...]],
) -> None:
    """``held``: (address, bytes, users) of what is registered at the beginning, numbered from 101; then ``steps``:
    ("find" | "acquire" | "forget", address, bytes) or ("release", number). Steps of
    the test's own: ("use", number), one user more; ("refuse",), the next register() raises."""

    refuses = False

    def register(address: int, nbytes: int) -> int:
        nonlocal refuses
        if refuses:
            refuses = False
            raise NotSupportedError("no memory can be registered now")
        number: int = ask("register", int(address), int(nbytes))
        return number

    def deregister(number: int) -> None:
        ask("deregister", int(number))

    cache = piece.RegistrationCache(register, deregister, idle_bytes)
    known = {}
    for number, (address, nbytes, users) in enumerate(held, FIRST_NUMBER):
        known[number] = piece.Registration(number, address, nbytes, users)
        cache.known.append(known[number])
    for what, *arguments in steps:
        if what == "use":
            known[arguments[0]].users += 1
            continue
        if what == "refuse":
            refuses = True
            continue
        returned: int | None = None
        used_by: int | None = None
        error: str | None = None
        try:
            if what == "release":
                found = cache.release(known[arguments[0]])
            else:
                found = getattr(cache, what)(*arguments)
            if found is not None:
                known[found.number] = found
                returned, used_by = int(found.number), int(found.users)
        except EpError as raised:
            error = type(raised).__name__
        now = [(int(each.number), int(each.users)) for each in cache.known]
        ask("ended", returned, used_by, error, now)

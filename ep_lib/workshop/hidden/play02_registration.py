"""The other half of ex02_registration.py, in the child: steps on the learner's cache, and what happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ep_lib.errors import EpError

_FIRST_NUMBER = 101  # of the registrations that are there at the beginning


def run(
    piece: Any, idle_bytes: int, held: Sequence[tuple[int, int, int]], steps: Sequence[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """``held``: (address, bytes, users) of what is registered at the beginning, numbered from 101; then ``steps``:
    ("find" | "acquire" | "forget", address, bytes) or ("release", number). New registrations are numbered on.

    For each step: what was registered and deregistered, the number returned (or None), the error if there was one.
    """
    events: list[tuple[Any, ...]] = []
    count = _FIRST_NUMBER + len(held)

    def register(address: int, nbytes: int) -> int:
        nonlocal count
        count += 1
        events.append(("register", count - 1, int(address), int(nbytes)))
        return count - 1

    def deregister(number: int) -> None:
        events.append(("deregister", int(number)))

    cache = piece.RegistrationCache(register, deregister, idle_bytes)
    known = {}
    for number, (address, nbytes, users) in enumerate(held, _FIRST_NUMBER):
        known[number] = piece.Registration(number, address, nbytes, users)
        cache.known.append(known[number])
    seen = []
    for what, *arguments in steps:
        events.clear()
        note: dict[str, Any] = {"returned": None, "error": None}
        try:
            if what == "release":
                returned = cache.release(known[arguments[0]])
            else:
                returned = getattr(cache, what)(*arguments)
            if returned is not None:
                known[returned.number] = returned
                note |= {"returned": returned.number, "users": returned.users}
        except EpError as error:
            note["error"] = type(error).__name__
        seen.append({**note, "events": list(events)})
    return seen

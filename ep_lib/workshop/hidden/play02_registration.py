"""The other half of ex02_registration.py, in the child: steps on the learner's cache, and what happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ep_lib.errors import EpError, NotSupportedError
from ep_lib.workshop.grader.process.far import Guest

_KNOWN = "__getattribute__", "known"
FIRST_NUMBER = 101  # of the registrations that are there at the beginning; those that the cache makes have 0, 1, ...


def _number(given: Any) -> int:
    """A registration's number; -1 if it has none yet."""
    return -1 if given is None else int(given)


def run(
    piece: Guest, idle_bytes: int, held: Sequence[tuple[int, int, int]], steps: Sequence[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """``held``: (address, bytes, users) of what is registered at the beginning, numbered from 101; then ``steps``:
    ("find" | "acquire" | "forget", address, bytes) or ("release", number). Steps of
    the test's own: ("use", number), one user more; ("refuse",), the next register() raises.

    Returns for each step: what was registered and deregistered, the number returned (or None), the error if any,
    and number and users of all that are known.
    """
    refuses, made = False, 0
    events: list[tuple[Any, ...]] = []
    seen: list[dict[str, Any]] = []

    def register(address: int, nbytes: int) -> int:
        nonlocal refuses, made
        if refuses:
            refuses = False
            raise NotSupportedError("no memory can be registered now")
        events.append(("register", made, int(address), int(nbytes)))
        made += 1
        return made - 1

    def deregister(number: int) -> None:
        events.append(("deregister", int(number)))

    cache = piece.make("RegistrationCache", register, deregister, idle_bytes)
    described = piece.make("operator:attrgetter", "number", "users")
    known = {}
    for number, (address, nbytes, users) in enumerate(held, FIRST_NUMBER):
        known[number] = piece.make("Registration", number, address, nbytes, users)
        cache.call("known.append", known[number], may_be_none=True)
    for what, *arguments in steps:
        if what == "use":
            known[arguments[0]].set("users", known[arguments[0]].get("users") + 1)
            continue
        if what == "refuse":
            refuses = True
            continue
        returned: int | None = None
        used_by: int | None = None
        error: str | None = None
        try:
            given = [known[arguments[0]]] if what == "release" else arguments
            found = cache.make(what, *given, may_be_none=True)
            if found is not None:
                returned, used_by = _number(found.get("number")), int(found.get("users"))
                known[returned] = found
        except EpError as raised:
            error = type(raised).__name__
        shown = piece.call("builtins:map", described, cache.make(*_KNOWN))
        now = [(_number(number), int(users)) for number, users in shown]
        seen.append({"returned": returned, "users": used_by, "error": error, "events": events, "known": now})
        events = []
    return seen

"""What ``spawn``, ``check`` and their like ask of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ep_lib.memory.device_state import MAX_RANKS
from ep_lib.require import one_of, refuse, seconds, several, whole_number
from ep_lib.transports import registry


def program(main: Callable[..., Any], ranks: Any) -> int:
    """How many ranks call ``main``. Raises ArgumentError if ``main`` cannot be called, or not by so many."""
    if not callable(main):
        refuse("main", main, "a function that takes a Rank")
    return whole_number("ranks", ranks, 1, MAX_RANKS)


def further(args: Any) -> tuple[Any, ...]:
    """What every rank's main gets besides its rank. Raises ArgumentError."""
    return tuple(several("args", args, "a tuple or a list of what main takes after the rank"))


def a_seed(value: Any, name: str = "seed") -> int:
    """The number that determines a schedule. Raises ArgumentError."""
    return whole_number(name, value, 0, 2**63 - 1)


def limits(heap_bytes: Any, timeout: Any) -> tuple[int | None, float | None]:
    """A heap's size in bytes and a time limit in seconds; None leaves either to the backend. Raises ArgumentError."""
    if heap_bytes is not None:
        heap_bytes = whole_number("heap_bytes", heap_bytes, 4096, 1 << 46)
    return heap_bytes, None if timeout is None else seconds("timeout", timeout)


def a_transport(value: Any) -> str:
    """How ranks on GPUs reach each other. Raises ArgumentError."""
    return one_of("transport", value, registry.names())

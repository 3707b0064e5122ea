"""What ``spawn``, ``check`` and their like ask of their arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.memory.device_state import MAX_RANKS
from ep_lib.transports import registry


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int, from ``low`` to ``high``. Raises ArgumentError that calls it ``name``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be a whole number") from None
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def at_least_one(name: str, value: Any) -> int:
    """``value`` as an int from 1 to 2**31 - 1, which kernels can take. Raises ArgumentError that calls it ``name``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name} is {value!r}; it must be a whole number, at least 1")
    if number < 1:
        raise ArgumentError(f"{name} is {number}; it must be at least 1")
    if number >= 2**31:
        raise ArgumentError(f"{name} is {value}; it must be below 2**31")
    return number


def program(main: Callable[..., Any], ranks: Any) -> int:
    """How many ranks call ``main``. Raises ArgumentError if ``main`` cannot be called, or not by so many."""
    if not callable(main):
        raise ArgumentError(f"main is {main!r}; it must be a function that takes a Rank")
    return whole_number("ranks", ranks, 1, MAX_RANKS)


def a_seed(value: Any, name: str = "seed") -> int:
    """The number that determines a schedule. Raises ArgumentError."""
    return whole_number(name, value, 0, 2**63 - 1)


def limits(heap_bytes: Any, timeout: float | None) -> tuple[int | None, float | None]:
    """A heap's size in bytes and a time limit in seconds; None leaves either to the backend. Raises ArgumentError."""
    if heap_bytes is not None:
        heap_bytes = whole_number("heap_bytes", heap_bytes, 4096, 1 << 46)
    if timeout is not None and not timeout > 0:
        raise ArgumentError(f"timeout is {timeout!r}; it must be a number of seconds above zero")
    return heap_bytes, timeout


def a_transport(value: str) -> str:
    """How ranks on GPUs reach each other. Raises ArgumentError."""
    known = registry.names()
    if value not in known:
        raise ArgumentError(f"transport is {value!r}; it must be one of {', '.join(map(repr, known))}")
    return value

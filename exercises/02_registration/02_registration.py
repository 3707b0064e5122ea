# Exercise 02_registration, version 1. Leave this line: ep_lib reads it.
"""A registration cache: registering memory is expensive, so it is kept for a while after its last user has let go.

Registering pins pages, so that they stay where they are, and tells the NIC about each of them. A program that sends
from the same few buffers over and over should pay for that once. Communication libraries do what is done here: UCX
calls it rcache, NCCL a registration cache.

    acquire(address, bytes)     a registration that holds them all: one that is there already, or a new one
    release(registration)       one user less. Without users it is idle: kept, as long as idle ones take few bytes
    forget(address, bytes)      the memory is about to be freed: nothing may stay registered there
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ep_lib.errors import ArgumentError


@dataclass(eq=False)
class Registration:
    """``nbytes`` bytes from ``address``, registered under ``number``, for so many ``users``."""

    number: Any  # what register() returned
    address: int
    nbytes: int
    users: int = 0


class RegistrationCache:
    """Calls ``register(address, nbytes)``, which returns a number, and ``deregister(number)``, as seldom as it can.

    Idle registrations may take up to ``idle_bytes`` bytes together. ``known`` are all registrations; among the idle
    ones, the one that was let go of longest ago comes first.
    """

    def __init__(
        self, register: Callable[[int, int], Any], deregister: Callable[[Any], object], idle_bytes: int = 0
    ) -> None:
        self.register = register
        self.deregister = deregister
        self.idle_bytes = idle_bytes
        self.known: list[Registration] = []

    def find(self, address: int, nbytes: int) -> Registration | None:
        """A registration that holds all of these bytes, None if there is none."""
        # TASK 1 (2 points): which registration holds these bytes?
        # One that touches the bytes is not enough: from the first to the last, all of them must be inside of
        # ONE registration.
        raise NotImplementedError("Task 1 is still to do: which registration holds these bytes?")
        # end of TASK 1

    def acquire(self, address: int, nbytes: int) -> Registration:
        """A registration that holds these bytes, which has one more user now. Where ``register`` raises, so does this,
        and ``known`` is what it was."""
        # TASK 2 (3 points): acquire: share one, or make one
        # find() first; only without a result call self.register(address, nbytes), make a Registration of the
        # number it returns, and append it to self.known. One more user in either case.
        raise NotImplementedError("Task 2 is still to do: acquire: share one, or make one")
        # end of TASK 2

    def release(self, registration: Registration) -> None:
        """One user less. Raises ArgumentError if it has none."""
        # TASK 3 (4 points): release: keep the idle ones, within limits
        # Without users: ArgumentError. Still some left after this one: nothing else to do. Otherwise it is idle
        # from now on: move it to the end of self.known, so that the idle ones stand in the order in which they
        # were let go. While the idle ones take more than self.idle_bytes together, end the first of them
        # (self._drop). Never one that is in use.
        raise NotImplementedError("Task 3 is still to do: release: keep the idle ones, within limits")
        # end of TASK 3

    def forget(self, address: int, nbytes: int) -> None:
        """Ends every idle registration that touches these bytes. ArgumentError, and ends none, if one is in use."""
        # TASK 4 (3 points): forget what is about to be freed
        # Here touching is enough: a registration of memory that is partly freed is wrong. First look whether
        # one of them is in use (ArgumentError, and all stay as they are), then _drop them all.
        raise NotImplementedError("Task 4 is still to do: forget what is about to be freed")
        # end of TASK 4

    def _drop(self, registration: Registration) -> None:
        self.known.remove(registration)
        self.deregister(registration.number)

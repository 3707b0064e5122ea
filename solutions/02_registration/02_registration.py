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
        # EXERCISE-BEGIN 1
        for each in self.known:
            if each.address <= address and address + nbytes <= each.address + each.nbytes:
                return each
        return None
        # EXERCISE-END 1

    def acquire(self, address: int, nbytes: int) -> Registration:
        """A registration that holds these bytes, which has one more user now. Where ``register`` raises, so does this,
        and ``known`` is what it was."""
        # EXERCISE-BEGIN 2
        found = self.find(address, nbytes)
        if found is None:
            found = Registration(self.register(address, nbytes), address, nbytes)
            self.known.append(found)
        found.users += 1
        return found
        # EXERCISE-END 2

    def release(self, registration: Registration) -> None:
        """One user less. Raises ArgumentError if it has none."""
        # EXERCISE-BEGIN 3
        if registration not in self.known or registration.users == 0:
            raise ArgumentError(f"{registration} has no users left: released twice?")
        registration.users -= 1
        if registration.users:
            return
        self.known.remove(registration)
        self.known.append(registration)
        idle = [each for each in self.known if not each.users]
        taken = sum(each.nbytes for each in idle)
        for oldest in idle:
            if taken <= self.idle_bytes:
                break
            self._drop(oldest)
            taken -= oldest.nbytes
        # EXERCISE-END 3

    def forget(self, address: int, nbytes: int) -> None:
        """Ends every idle registration that touches these bytes. ArgumentError, and ends none, if one is in use."""
        # EXERCISE-BEGIN 4
        touched = [
            each for each in self.known if each.address < address + nbytes and address < each.address + each.nbytes
        ]
        for each in touched:
            if each.users:
                raise ArgumentError(f"{each} is in use: release it before its memory is freed")
        for each in touched:
            self._drop(each)
        # EXERCISE-END 4

    def _drop(self, registration: Registration) -> None:
        self.known.remove(registration)
        self.deregister(registration.number)

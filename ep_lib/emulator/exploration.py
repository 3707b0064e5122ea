"""Every schedule of a small program, one run after the other: Python's interface to runtime/exploration.hpp."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ep_lib.emulator import library

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine

WHOLE, REDUNDANT, CUT, STRAYED = range(4)  # Exploration::Outcome
NONE, SLEEPING, WITHIN_BOUND = range(3)  # Exploration::Reduction
BUSY_TURNS = 4  # Exploration::kBusy


class Exploration:
    """The runs of a program that are left, made by one machine after another.

    ``preemptions``: the most in a run; None for any number. ``events``: the most in a run. ``turns``: the most
    iterations of a loop that waits and counts. ``reduction``: NONE makes every order of events, equivalent or not;
    SLEEPING as few as possible, which may miss some within a bound on preemptions; WITHIN_BOUND misses none.
    ``kernels``: those whose schedules are explored, while others run in the calm order; none: all.
    """

    def __init__(
        self,
        *,
        preemptions: int | None = None,
        events: int,
        turns: int,
        kernels: Sequence[str] = (),
        reduction: int = SLEEPING,
    ) -> None:
        self._lib = library.load()
        bounds = library.Bounds(-1 if preemptions is None else preemptions, reduction, events, turns)
        self._handle = int(self._lib.epemu_explore_create(ctypes.byref(bounds)))
        weakref.finalize(self, self._lib.epemu_explore_destroy, self._handle)
        self._lib.epemu_explore_only(self._handle, "\n".join(kernels).encode())

    def begin(self, machine: Machine) -> None:
        """Starts the next run on this machine; call before its first launch."""
        self._lib.epemu_explore_begin(self._handle, machine.handle)

    def next(self) -> bool:
        """Call after each run. Returns whether another one is left."""
        return bool(self._lib.epemu_explore_next(self._handle))

    def load(self, part: str) -> None:
        """Explores only this part: see ep_lib/runtime/exhaustion.py."""
        self._lib.epemu_explore_load(self._handle, part.encode())

    def save(self) -> str:
        """The rest of the part, and its requests to others, as text."""
        return str(self._lib.epemu_explore_save(self._handle).decode())

    def follow(self, schedule: str) -> None:
        """Makes every run from here on follow this schedule."""
        self._lib.epemu_explore_follow(self._handle, schedule.encode())

    def draw(self, seed: int) -> None:
        """Makes the next run a random one. ``status.whole`` is then an unbiased estimate of the number of runs that are
        not equivalent; -1 if there is none."""
        self._lib.epemu_explore_draw(self._handle, seed)

    @property
    def launched(self) -> list[str]:
        """The kernels of the runs so far."""
        return str(self._lib.epemu_explore_launched(self._handle).decode()).split()

    @property
    def status(self) -> library.ExplorationStatus:
        """Counts of runs so far, and of the last run."""
        status = library.ExplorationStatus()
        self._lib.epemu_explore_status(self._handle, ctypes.byref(status))
        return status

    @property
    def is_whole(self) -> bool:
        """Whether the last run reached its end."""
        return bool(self.status.outcome == WHOLE)

    @property
    def schedule(self) -> str:
        """The schedule of the last run: its decisions that differ from the calm ones, as "number:option" words."""
        return str(self._lib.epemu_explore_schedule(self._handle).decode())

    @property
    def strayed(self) -> str:
        """How a run differed from the one that it should repeat; empty if none did."""
        return str(self._lib.epemu_explore_strayed(self._handle).decode())

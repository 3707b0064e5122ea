"""Every schedule of a small program, one run after the other: what runtime/exhaustive.hpp knows, in Python's terms."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ep_lib.emulator import library

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine

WHOLE, REDUNDANT, CUT, STRAYED = range(4)  # Exploration::Outcome
NONE, SLEEPING, WITHIN_BOUND = range(3)  # Exploration::Reduction
BUSY_TURNS = 4  # Exploration::kBusy


@dataclass(frozen=True)
class Status:
    """Counts of runs so far, and of the last run: see ``epemu::Exploration::Status``."""

    explored: int
    redundant: int
    cut: int
    counted: int
    skipped: int
    calm: int
    most_events: int
    switches: int
    decisions: int
    whole: float
    equivalence: int
    outcome: int
    inputs: int


class Exploration:
    """Which runs of a program are still to be made. One machine after the other makes them.

    ``preemptions``: the most of a run; None for any number. ``events``: of a run, at most. ``turns``: how often a loop
    that waits and counts may go round. ``reduction``: NONE makes every order of events, equivalent or not; SLEEPING as
    few as possible, but with a bound on preemptions perhaps not all that are within it; WITHIN_BOUND does. ``kernels``:
    those whose schedules are explored while others run in the calm order; none: all.
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
        """The machine makes the next run; to be called before its first launch."""
        self._lib.epemu_explore_begin(self._handle, machine.handle)

    def next(self) -> bool:
        """To be called after each run. Returns whether there is another one."""
        return bool(self._lib.epemu_explore_next(self._handle))

    def load(self, part: str) -> None:
        """Explores this part, and nothing else: see ep_lib/runtime/exhaustion.py."""
        self._lib.epemu_explore_load(self._handle, part.encode())

    def save(self) -> str:
        """What is left of the part, and what others have to know."""
        return str(self._lib.epemu_explore_save(self._handle).decode())

    def follow(self, schedule: str) -> None:
        """Each run from here on is this one."""
        self._lib.epemu_explore_follow(self._handle, schedule.encode())

    def draw(self, seed: int) -> None:
        """The next run is a random one: ``status.whole`` is then an estimate of how many there are that are not
        equivalent to each other, right on average; -1 where that is too hard to tell."""
        self._lib.epemu_explore_draw(self._handle, seed)

    @property
    def launched(self) -> list[str]:
        """The kernels of the runs so far."""
        return str(self._lib.epemu_explore_launched(self._handle).decode()).split()

    @property
    def status(self) -> Status:
        """What is known now."""
        status = library.ExplorationStatus()
        self._lib.epemu_explore_status(self._handle, ctypes.byref(status))
        return Status(*(getattr(status, name) for name, *_ in library.ExplorationStatus._fields_))

    @property
    def is_whole(self) -> bool:
        """Whether the run that was just made went to its end."""
        return self.status.outcome == WHOLE

    @property
    def schedule(self) -> str:
        """The last run: its decisions that were not the calm ones, as "number:option" words."""
        return str(self._lib.epemu_explore_schedule(self._handle).decode())

    @property
    def strayed(self) -> str:
        """How a run differed from the one that it had to repeat; empty if none did."""
        return str(self._lib.epemu_explore_strayed(self._handle).decode())

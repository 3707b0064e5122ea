"""The ranks of one ``spawn``: one Python thread each. One thread runs at a time, and kernels run when all wait.

A rank ends its turn only where it waits (synchronize, barrier, all-gather), and turns go in rank order. So a program's
behaviour depends on its seed alone, never on the operating system's scheduling, and the output of ranks is in order.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from ep_lib.callers import frame_of, outer_frame, place
from ep_lib.emulator.machine import Machine, start_thread
from ep_lib.emulator.outcomes import say_who_waited
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    BufferClosedError,
    DeadlockError,
    EpError,
    PeerTimeout,
    RankMismatchError,
)

_NOT_REPLACED = "a process can take the place of a rank on the emulator that was one too (mpiexec, torchrun, srun)"
_LOOK_SECONDS = 0.1  # the driver's wait for a rank, before it checks signals again
_LONG_SECONDS = 120  # of a rank's own Python, while no other rank runs
_UNWIND_SECONDS = 2.0  # for an abandoned rank to leave Python code that does not wait


class _Abandoned(BaseException):
    """Unwinds a rank whose world has ended; never seen by users."""


@dataclass
class _Collective:
    """A rank's part of an all-gather: its object, and the calling line."""

    what: str
    payload: bytes
    file: str
    line: int

    def __str__(self) -> str:
        if Path(self.file).name == "threading.py":
            return self.what
        return f"{self.what} at {place(self.file, self.line)}"


class _Member:
    """One rank: its thread, whether it can take a turn, and the launch or collective it waits for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.turn = threading.Semaphore(0)
        self.thread: threading.Thread | None = None
        self.ident = 0  # of the thread, while main runs
        self.has_turn = False  # its main runs; no other's does
        self.ticket = 0  # of the launch that it waits for
        self.collective: _Collective | None = None
        self.gathered: list[bytes] = []
        self.error: BaseException | None = None  # to raise where the rank waits
        self.done = False
        self.result: Any = None
        self.failure: BaseException | None = None

    @property
    def waits(self) -> bool:
        return self.ticket != 0 or self.collective is not None

    def describe_wait(self) -> str:
        if self.collective is not None:
            return f"rank {self.number} waits in {self.collective}"
        return f"rank {self.number} waits for its kernels"

    def place(self) -> str:
        """The user's current line as `` at file:line``; "" if there is none."""
        frame = frame_of(self.ident)
        return "" if frame is None else f" at {place(frame.f_code.co_filename, frame.f_lineno)}"


def _raise(member: _Member, name: str) -> NoReturn:
    """Raises an exception of a member and forgets it: with its traceback, it would keep the whole world alive."""
    error = getattr(member, name)
    setattr(member, name, None)
    try:
        raise error
    finally:
        del error


def _caller() -> tuple[str, int]:
    """File and line of the user's program."""
    frame = outer_frame()
    return frame.f_code.co_filename, frame.f_lineno


class _Threads:
    """The answers of a world whose ranks are threads to questions about processes."""

    gave_up = False  # no rank can be lost alone

    def invitation(self) -> str:
        """Threads of one process are not replaced."""
        raise BackendUnavailable(_NOT_REPLACED)

    def reserve(self, begin: int, nbytes: int) -> None:
        """Nothing to do: this process's own heap gets memory as it is touched."""

    def leave_out(self, ranks: Collection[int]) -> None:
        """Ranks that are left out do something else, or have stopped."""

    def take_back(self, ranks: Collection[int]) -> None:
        """Their memory is where it was."""

    def abandon(self, error: BaseException) -> None:
        """Nothing to do: spawn sees the error, and a solo rank has no others."""

    def explained(self, error: EpError) -> EpError:
        """Adds nothing to a kernel's error."""
        return error


class World(_Threads):
    """Drives the ranks of one machine. The thread that calls :meth:`run_all` is the driver."""

    runs_in_background: Literal[False] = False  # kernels run when all ranks wait

    def __init__(self, machine: Machine, *, timeout: float) -> None:
        self.machine = machine
        self.timeout = timeout
        self.size = machine.ranks
        self._members = [_Member(r) for r in range(self.size)]
        self._back = threading.Semaphore(0)
        self._ended = False

    def explained(self, error: EpError) -> EpError:
        """A timeout's error with all waiting threads."""
        if isinstance(error, PeerTimeout):
            say_who_waited(error, self.machine.quiescence)
        return error

    # ---- called by ranks, on their own threads ---------------------------------------------------------------
    def wait_for_ticket(self, rank: int, ticket: int) -> None:
        """Returns when the rank's launch has finished; raises what ended the run otherwise."""
        member = self._members[rank]
        if threading.get_ident() != member.ident:
            self.require_own(rank)
        if ticket and self.machine.done_ticket(rank) < ticket:
            if self.machine.error is not None:
                self.machine.raise_if_broken()
            member.ticket = ticket
            self._give_up_turn(member)
        if self.machine.checks or self.machine.runs_in_virtual_time:
            self.machine.host_waited(rank, ticket)

    def all_gather(self, rank: int, what: str, obj: object) -> list[Any]:
        """Every rank's object, in rank order; copies, as they would be between processes."""
        member = self._members[rank]
        self.require_own(rank)
        member.collective = _Collective(what, pickle.dumps(obj), *_caller())
        self._give_up_turn(member)
        return [pickle.loads(payload) for payload in member.gathered]

    def leave(self, rank: int) -> None:
        """Nothing to do: the world lasts until its spawn ends."""

    def require_own(self, rank: int) -> None:
        """Raises ArgumentError where one rank's main uses the Rank of another, which would wait for ever, and
        BufferClosedError where a Rank is used after its spawn."""
        caller, member = threading.get_ident(), self._members[rank]
        if caller == member.ident:
            return
        for other in self._members:
            if other.ident == caller and not other.done:
                raise ArgumentError(
                    f"this is the Rank of rank {member.number}, and the main of rank {other.number} uses it; every "
                    "main uses the Rank that it was called with"
                )
        if self._ended:
            raise BufferClosedError(f"rank {member.number} is of a spawn() that has ended; start a new one")

    def _give_up_turn(self, member: _Member) -> None:
        if self._ended:
            raise _Abandoned
        self._back.release()
        member.turn.acquire()
        if member.error is not None:
            _raise(member, "error")

    # ---- the driver ------------------------------------------------------------------------------------------
    def run_all(self, main: Callable[[int], Any]) -> list[Any]:
        """Calls ``main(rank)`` on every rank; returns the results, or raises the first failure."""
        try:
            for member in self._members:
                thread = threading.Thread(
                    target=self._body, args=(member, main), name=f"rank {member.number}", daemon=True
                )
                start_thread(thread)
                member.thread = thread
            while not all(m.done or self._is_lost(m) for m in self._members):
                self._take_turns()
                if not self._finish_collective():
                    self._run_kernels()
            return [m.result for m in self._members]
        finally:
            self._end()

    def _is_lost(self, member: _Member) -> bool:
        """Whether the member waits for kernels of a rank that has stopped: it will never take a turn again."""
        return member.ticket > 0 and self.machine.has_stopped(member.number)

    def _body(self, member: _Member, main: Callable[[int], Any]) -> None:
        try:
            member.ident = threading.get_ident()
            member.turn.acquire()
            if not self._ended:
                member.result = main(member.number)
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - the driver raises it in the thread that called spawn()
            member.failure = error
        member.done = True
        self._back.release()

    def _take_turns(self) -> None:
        for member in self._members:
            while not member.done and not member.waits:
                member.has_turn = True
                member.turn.release()
                self._await(member)
                member.has_turn = False
            if member.failure is not None:
                if self.size > 1:
                    member.failure.add_note(f"(raised in rank {member.number} of {self.size})")
                _raise(member, "failure")

    def _await(self, member: _Member) -> None:
        """Returns when the rank waits or has ended. Its own Python has no limit: a warning says once that it takes
        long, and an interrupt reports its line."""
        began, is_said = time.monotonic(), False
        try:
            # With a limit: an interrupt that comes just before the wait, or in another thread, does not end it.
            while not self._back.acquire(timeout=_LOOK_SECONDS):
                if not is_said and time.monotonic() - began > _LONG_SECONDS:
                    is_said = True
                    where = f"has been in its own Python for {_LONG_SECONDS} s{member.place()}"
                    sys.stderr.write(f"ep_lib: rank {member.number} {where}; the other ranks wait for it\n")
        except KeyboardInterrupt as stop:
            stop.add_note(f"(rank {member.number} of {self.size} was in its own Python{member.place()})")
            raise

    def _finish_collective(self) -> bool:
        """Completes a collective that every rank has reached. Raises if the ranks called different ones."""
        calls = [m.collective for m in self._members]
        present = [c for c in calls if c is not None]
        if len(present) < self.size:
            return all(m.done for m in self._members)
        if len({c.what for c in present}) > 1:
            error = RankMismatchError(
                "the ranks wait in different collective operations, so none can finish: "
                + "; ".join(m.describe_wait() for m in self._members)
            )
            for member in self._members:
                member.error, member.collective = copy.copy(error), None
            return True
        self.machine.drain_network()
        self.machine.hosts_met()
        payloads = [c.payload for c in present]
        for member in self._members:
            member.gathered, member.collective = payloads, None
        return True

    def _run_kernels(self) -> None:
        """All ranks wait, some of them for kernels: runs those."""
        waiting = [m for m in self._members if m.ticket and not self._is_lost(m)]
        host_waits = [m.describe_wait() for m in self._members if m.collective is not None]
        host_waits += [f"rank {m.number} has returned from main" for m in self._members if m.done]
        host_waits += [f"rank {m.number} has stopped (stopped_ranks)" for m in self._members if self._is_lost(m)]
        if not waiting:
            error: EpError = DeadlockError("deadlock: " + "; ".join(host_waits))
            for member in self._members:
                if member.collective is not None:
                    member.error, member.collective = copy.copy(error), None
            return
        try:
            self.machine.run(
                [m.ticket if m in waiting else 0 for m in self._members], timeout=self.timeout, host_waits=host_waits
            )
        except EpError as broken:
            for member in waiting:
                member.error, member.ticket = copy.copy(broken), 0
            return
        for member in waiting:
            if self.machine.done_ticket(member.number) >= member.ticket:
                member.ticket = 0

    def _end(self) -> None:
        """Unwinds the remaining ranks, one at a time, and closes the machine."""
        self._ended = True
        for member in self._members:
            thread = member.thread
            if member.done:
                if thread is not None:
                    thread.join(_UNWIND_SECONDS)  # it has a few instructions left
                continue
            member.error = _Abandoned()
            if member.has_turn and thread is not None and thread.ident is not None:
                # It runs Python code (an interrupt came during its turn): raise there. A rank that waits for a turn
                # checks _ended: under a debugger, CPython 3.11 does not run this thread while an exception is pending
                # in the other.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned))
            member.turn.release()
            if thread is not None:
                thread.join(_UNWIND_SECONDS)
        for member in self._members:  # data of ranks must not outlive this world
            member.error = member.failure = member.result = None
        self.machine.close()


class SoloWorld(_Threads):
    """A world of one rank without threads of its own, for ``ep_lib.init()``: a wait runs the kernels."""

    runs_in_background: Literal[False] = False

    def __init__(self, machine: Machine, *, timeout: float) -> None:
        self.machine = machine
        self.timeout = timeout
        self.size = 1

    def wait_for_ticket(self, rank: int, ticket: int) -> None:
        """Runs the rank's kernels up to this launch."""
        if ticket and self.machine.done_ticket(rank) < ticket:
            self.machine.run([ticket], timeout=self.timeout, host_waits=[])
        self.machine.host_waited(rank, ticket)

    def require_own(self, rank: int) -> None:
        """Nothing to do: there is no other rank."""

    def all_gather(self, rank: int, what: str, obj: object) -> list[Any]:
        """The one rank's object, copied as between processes."""
        return [pickle.loads(pickle.dumps(obj))]

    def leave(self, rank: int) -> None:
        """Ends the world with its only rank."""
        self.machine.close()

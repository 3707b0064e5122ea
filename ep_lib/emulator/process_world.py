"""The world of a rank that is a process: its kernels run here, in the background, and the others are elsewhere.

Launches run as on a GPU: they go on while the host does something else, also while it waits for other ranks. Nothing is
deterministic; ``spawn`` is.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from ep_lib.bootstrap.base import CLOSE, DEFAULT_TIMEOUT, Bootstrap, meet
from ep_lib.emulator.machine import Machine, start_thread
from ep_lib.emulator.shared_heaps import SharedHeaps
from ep_lib.errors import EpError, KernelTimeout, RankFailed
from ep_lib.processes import TookTooLong

_LOOK_SECONDS = 0.2  # between two looks at the other processes, and at the limit


class _Limit:
    """Of the time that kernels take: computing, or waiting for other ranks. A busy machine's time counts nowhere."""

    def __init__(self, machine: Machine, seconds: float) -> None:
        self._machine, self._limit = machine, seconds
        self._begin, (self._used, self._delayed) = time.monotonic(), machine.seconds()

    def require(self) -> None:
        """Raises TookTooLong."""
        now_used, now_delayed = self._machine.seconds()
        used = now_used - self._used
        waited = time.monotonic() - self._begin - used - (now_delayed - self._delayed)
        if used > self._limit:
            raise TookTooLong(f"used {self._limit:g} s of CPU time")
        if waited > self._limit:
            raise TookTooLong(f"waited for {self._limit:g} s")


class ProcessWorld:
    """What one rank's backend asks about the others. ``timeout``: seconds that its kernels may take, of CPU time, or of
    waiting for other ranks."""

    runs_in_background: Literal[True] = True

    def __init__(self, machine: Machine, bootstrap: Bootstrap, heaps: SharedHeaps, *, timeout: float) -> None:
        self.machine = machine
        self.timeout = timeout
        self.size = machine.ranks
        self.heaps = heaps
        self._rank = bootstrap.rank
        self._bootstrap = bootstrap
        self._meeting_timeout = max(DEFAULT_TIMEOUT, timeout)
        self._changed = threading.Condition()
        self._wanted = 0  # the last launch's ticket
        self._done = 0
        self._failure: EpError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run_kernels, name="ep_lib kernels", daemon=True)
        start_thread(self._thread)
        atexit.register(self._end)  # a thread inside a kernel must not outlive Python's memory

    # ---- kernels -----------------------------------------------------------------------------------------------
    def launched(self, rank: int, ticket: int) -> None:
        """The rank has queued a kernel, which begins at once if none is running."""
        with self._changed:
            self._wanted = ticket
            self._changed.notify_all()

    def _run_kernels(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._wanted > self._done)
                if self._closed:
                    return
                wanted = self._wanted
            awaited = [wanted if rank == self._rank else 0 for rank in range(self.size)]
            try:
                self.machine.run(awaited, timeout=math.inf, host_waits=[])
                self.machine.drain_network()
            except EpError as error:
                with self._changed:
                    self._failure, self._closed = error, True
                    self._changed.notify_all()
                return
            with self._changed:
                self._done = wanted
                self._changed.notify_all()

    def wait_for_ticket(self, rank: int, ticket: int) -> None:
        """Returns when the rank's launch has finished.

        Raises RankFailed if it cannot because another process has ended, KernelTimeout after the limit, and what went
        wrong in a kernel.
        """
        if self._done >= ticket and self._failure is None:
            return
        limit = _Limit(self.machine, self.timeout)
        try:
            while not self._wait(ticket):
                if ended := self.heaps.ended():
                    self._stop()
                    where = f". Meanwhile here:\n{self._waiters()}" if self._waiters() else ""
                    raise RankFailed(
                        f"rank {ended[0]}'s process has ended while rank {self._rank} waited for its kernels{where}",
                        rank=ended[0],
                    )
                limit.require()
        except TookTooLong as error:
            self._stop()
            raise KernelTimeout(
                f"rank {self._rank}'s kernels {error}, the time limit (init's timeout=, EP_LIB_TIMEOUT_S). "
                f"Unfinished:\n{self._waiters()}",
                waiters=getattr(self._failure, "waiters", ()),
            ) from None
        except BaseException:  # an interrupt ends the kernels
            self._stop()
            raise

    def _wait(self, ticket: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._done >= ticket, _LOOK_SECONDS)
            if self._failure is not None:
                raise copy.copy(self._failure)  # a traceback on the one that stays would keep all this alive
            return self._done >= ticket

    def _stop(self) -> None:
        """Ends the kernels that run, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self.machine.stop()
            self._thread.join(0.01)

    def _waiters(self) -> str:
        """Who of this rank waits where, once the kernels were stopped."""
        return str(self._failure).partition("Unfinished:\n")[2]

    # ---- the others --------------------------------------------------------------------------------------------
    def require_own(self, rank: int) -> None:
        """There is no other in this process."""

    def all_gather(self, rank: int, what: str, obj: object) -> list[Any]:
        """Every rank's object, in rank order. Raises RankFailed, PeerTimeout, RankMismatchError."""
        return meet(self._bootstrap, what, obj, self._meeting_timeout, self._look_at_the_others(what))

    def _look_at_the_others(self, what: str) -> Callable[[], None]:
        def look() -> None:
            if self._failure is not None:
                raise copy.copy(self._failure)
            if ended := self.heaps.ended():
                raise RankFailed(
                    f"rank {ended[0]} will not join {what}, in which rank {self._rank} waits: its process has ended",
                    rank=ended[0],
                )

        return look

    def reserve(self, begin: int, nbytes: int) -> None:
        """Takes memory for these bytes of the rank's heap. Raises OutOfSymmetricMemory."""
        self.heaps.reserve(begin, nbytes)

    def leave(self, rank: int) -> None:
        """Waits until all ranks leave, so that none misses another, and gives everything back; at most ``timeout``."""
        deadline = time.monotonic() + self.timeout
        with contextlib.suppress(EpError):  # a rank that has failed keeps nobody from closing
            meet(self._bootstrap, CLOSE, None, self.timeout, self._look_at_the_others(CLOSE))
        self._end()
        self.machine.close()
        self.heaps.close()
        self._bootstrap.close(max(0.0, deadline - time.monotonic()))

    def _end(self) -> None:
        self._stop()
        atexit.unregister(self._end)

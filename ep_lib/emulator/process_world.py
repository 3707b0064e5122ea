"""The world of a rank that is a process of its own: its kernels run here, in the background.

Launches run as on a GPU: they continue while the host does other work or waits for other ranks. Runs are not
deterministic; those of ``spawn`` are.
"""

from __future__ import annotations

import atexit
import copy
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np

from ep_lib.bootstrap.base import CLOSE, DEFAULT_TIMEOUT, Bootstrap, LateBootstrap, meet
from ep_lib.bootstrap.stopped import give_up_on_stopped, waited_for_stopped
from ep_lib.emulator.host_links import HostLinks
from ep_lib.emulator.machine import Machine, start_thread
from ep_lib.emulator.shared_heaps import ENDED, SharedHeaps
from ep_lib.errors import EpError, KernelTimeout, PeerTimeout, RankFailed
from ep_lib.jit import device_state
from ep_lib.processes import TookTooLong

_GRACE_SECONDS = 0.4  # for kernels to end by themselves once another process has ended
_LOOK_SECONDS = 0.1  # between checks of the other processes and of the limit
_FAILED_CLOSE_SECONDS = 0.5  # of closing after an error: ranks that wait for this one are notified, but not waited for


class _Limit:
    """The limit on kernels' time: computing, or waiting for other ranks. Time lost to a busy machine does not count."""

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


def _waited_for(error: PeerTimeout, lost: int) -> str:
    """What a kernel waited for, if the loss of rank ``lost`` is the cause; without hints about missing launches and
    limits."""
    if error.phase in ("proxy", "bootstrap") or error.peer < 0:
        return str(error)
    return device_state.said_of(error, "waited", "it" if error.peer == lost else "")


class ProcessWorld:
    """A rank's view of the other ranks, for its backend. ``timeout``: seconds that its kernels may take, of CPU time,
    or of waiting for other ranks."""

    runs_in_background: Literal[True] = True

    def __init__(
        self,
        machine: Machine,
        bootstrap: Bootstrap,
        heaps: SharedHeaps,
        links: HostLinks | None = None,
        *,
        timeout: float,
    ) -> None:
        """``links``: connections to other hosts; None for a single host."""
        self.machine = machine
        self.timeout = timeout
        self.size = machine.ranks
        self.heaps = heaps
        self._links = links
        self._rank = bootstrap.rank
        self._bootstrap = bootstrap
        self._meeting_timeout = max(DEFAULT_TIMEOUT, timeout)
        begin = device_state.HEADER.offsets["gone"]
        self._words = machine.heap_view(self._rank)[begin : begin + 16].view(np.uint64)
        self._changed = threading.Condition()
        self._wanted = 0  # the last launch's ticket
        self._done = 0
        self._failure: EpError | None = None
        self.gave_up = False  # a call has raised because of another rank
        self._has_changed = isinstance(bootstrap, LateBootstrap)  # processes have been replaced since the bootstrap
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run_kernels, name="ep_lib kernels", daemon=True)
        start_thread(self._thread)
        atexit.register(self._abandon)  # a thread inside a kernel must not outlive Python's memory

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

        Raises RankFailed if it cannot because another process has ended, KernelTimeout after the limit, and the error
        of a kernel.
        """
        if self._done >= ticket and self._failure is None:
            return
        limit, lost_at = _Limit(self.machine, self.timeout), 0.0
        try:
            while not self._wait(ticket):
                if ended := self._ended():
                    now = time.monotonic()
                    lost_at = lost_at or now
                    # Waits for the ended ranks fail first, then waits for ranks that waited for them, so that the
                    # remaining ranks can continue (Buffer.mask_ranks). Loops without <ep/wait.cuh> are ended by force.
                    self._tell_kernels(ended, now - lost_at > _GRACE_SECONDS)
                    if now - lost_at < 2 * _GRACE_SECONDS:
                        continue
                    self._stop()
                    where = f". Meanwhile here:\n{self._waiters()}" if self._waiters() else ""
                    raise self.explained(
                        RankFailed(f"rank {self._rank} was waiting for its kernels{where}", rank=ended[0])
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
        finally:
            if lost_at:
                self._tell_kernels([], False)

    def _tell_kernels(self, gone: Collection[int], give_up: bool) -> None:
        """Updates the state that waits in this rank's kernels check: the ranks that are gone, and whether no wait can
        succeed any more."""
        self._words[:] = sum(1 << rank for rank in gone), give_up

    def explained(self, error: EpError) -> EpError:
        """The error of a kernel or a collective, with the rank that caused it."""
        if not isinstance(error, PeerTimeout | RankFailed):
            return error
        ended = self._ended()
        lost = self.heaps.lost() or ((ended[0], ENDED) if ended else None)
        self.gave_up = True
        if lost is None:
            self.heaps.blame(error.peer if isinstance(error, PeerTimeout) else error.rank)
            return error
        rank, what = lost
        self.heaps.blame(rank)
        text = _waited_for(error, rank) if isinstance(error, PeerTimeout) else str(error)
        # The peer of this rank's error may have failed because of yet another rank.
        because = ":" if rank == (error.peer if isinstance(error, PeerTimeout) else error.rank) else "; because of that"
        text = f"rank {rank} {what}{because} {text}"
        if isinstance(error, RankFailed) or rank in ended:
            return RankFailed(text, rank=rank)
        return PeerTimeout(
            text,
            rank=error.rank,
            peer=rank,
            phase=error.phase,
            slot=error.slot,
            seen=error.seen,
            expected=error.expected,
        )

    def _wait(self, ticket: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._done >= ticket, _LOOK_SECONDS)
            if self._failure is not None:
                raise copy.copy(self._failure)  # a traceback on the kept error would keep everything alive
            return self._done >= ticket

    def _stop(self) -> None:
        """Ends the running kernels for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self.machine.stop()
            self._thread.join(0.01)

    def _waiters(self) -> str:
        """This rank's waiting threads and their places, after the kernels were stopped."""
        return str(self._failure).partition("Unfinished:\n")[2]

    # ---- the others --------------------------------------------------------------------------------------------
    def require_own(self, rank: int) -> None:
        """Checks that ``rank`` is this process's own."""

    def all_gather(self, rank: int, what: str, obj: object) -> list[Any]:
        """Every rank's object, in rank order. Raises RankFailed, PeerTimeout, RankMismatchError."""
        try:
            return meet(self._bootstrap, what, obj, self._meeting_timeout, self._look_at_the_others(what))
        except (PeerTimeout, RankFailed) as error:
            raise self.explained(error) from None

    def _look_at_the_others(self, what: str) -> Callable[[], None]:
        look_at_stopped = give_up_on_stopped(self._rank, what, self.timeout, self.heaps.stopped)

        def look() -> None:
            if self._failure is not None:
                raise copy.copy(self._failure)
            if ended := self._ended():
                raise RankFailed(
                    f"rank {ended[0]} will not join {what}, in which rank {self._rank} waits: its process has ended",
                    rank=ended[0],
                )
            for rank in self.heaps.ended_and_left_out():
                raise RankFailed(
                    f"rank {rank}, which is masked, has ended, and {what} needs every rank: make Buffers and symmetric "
                    "arrays before, and leave host collectives out after mask_ranks",
                    rank=rank,
                )
            look_at_stopped()

        return look

    def _ended(self) -> list[int]:
        """The ranks whose processes have ended, without those that are left out."""
        return self.heaps.ended() + ([] if self._links is None else self._links.ended())

    def reserve(self, begin: int, nbytes: int) -> None:
        """Takes memory for these bytes of the rank's heap. Raises OutOfSymmetricMemory."""
        self.heaps.reserve(begin, nbytes)

    def invitation(self) -> str:
        """The invitation for a process that replaces a rank."""
        if self._links is not None:
            self._links.refuse_rejoin()
        return self.heaps.invitation

    def leave_out(self, ranks: Collection[int]) -> None:
        """The end of these ranks' processes is no error from now on."""
        self.gave_up, self._has_changed = False, True
        self.heaps.leave_out(ranks)
        if self._links is not None:
            self._links.leave_out(ranks)

    def take_back(self, ranks: Collection[int]) -> None:
        """Reaches these ranks again, also in new processes. With this rank among them: it has joined the others. Raises
        PeerTimeout."""
        if self._links is not None:
            self._links.refuse_rejoin()
        late = self._bootstrap if self._rank in ranks and isinstance(self._bootstrap, LateBootstrap) else None
        if late is not None:  # before waiting for other new ranks, which wait for this one
            self.heaps.take_seat()
        self.heaps.take_back(ranks, self._meeting_timeout)
        if late is not None:
            late.has_joined()

    def leave(self, rank: int) -> None:
        """Waits until all ranks leave, at most ``timeout`` seconds, then releases everything.

        After an error caused by another rank it does not wait, so that the error is raised now. Raises PeerTimeout at
        the end if it waited for a rank whose process is stopped; other ranks that do not come are no error.
        """
        begin, late = time.monotonic(), None
        deadline = begin + (_FAILED_CLOSE_SECONDS if self.gave_up else self.timeout)
        if self.gave_up:
            pass
        elif self._has_changed and self._links is None:
            self.heaps.leave_together(self.timeout)
        else:
            try:
                meet(self._bootstrap, CLOSE, None, self.timeout, self._look_at_the_others(CLOSE))
            except EpError:
                for peer, process in self.heaps.stopped().items():
                    waited = round(time.monotonic() - begin, 1)
                    late = late or waited_for_stopped(rank, CLOSE, waited, peer, process)
        self._end()
        self.machine.end_forwarding()
        self.machine.close()
        self.heaps.close()
        self._bootstrap.close(max(0.0, deadline - time.monotonic()))
        if late is not None:
            raise late

    def abandon(self, error: BaseException | None) -> None:
        """Ends this rank by an error that may be its own. The others see it gone, and receive the error."""
        self._end()
        self.gave_up = True
        self.heaps.abandon(error)

    def _abandon(self) -> None:
        """Runs when Python exits without :meth:`leave`."""
        if os.getpid() == self._process:  # not in a forked child
            self.abandon(getattr(sys, "last_value", None))

    def _end(self) -> None:
        self._stop()
        atexit.unregister(self._abandon)

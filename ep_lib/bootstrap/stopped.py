"""Finds ranks of this host whose processes are stopped: host collectives wait two minutes for a compiling rank, but for
a stopped one only until the time limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ep_lib.bootstrap import siblings
from ep_lib.bootstrap.base import Bootstrap, Look
from ep_lib.bootstrap.torchrun import StoreBootstrap
from ep_lib.errors import PeerTimeout, RankFailed
from ep_lib.processes import Identity, is_stopped

_LONGEST_STEP = 1.0  # seconds that count between two checks: this process may have been stopped itself


def give_up_on_stopped(rank: int, what: str, seconds: float, stopped: Callable[[], Mapping[int, int]]) -> Look:
    """Call now and then while ``rank`` waits in the collective ``what``.

    ``stopped`` returns the ranks whose processes are stopped now, with the process ids. Raises PeerTimeout when one has
    been stopped for ``seconds``.
    """
    waited: dict[int, float] = {}
    last = time.monotonic()

    def look() -> None:
        nonlocal last, waited
        now = time.monotonic()
        step, last = min(now - last, _LONGEST_STEP), now
        processes = stopped()
        waited = {each: waited[each] + step if each in waited else 0.0 for each in processes}
        for each, so_far in waited.items():
            if so_far >= seconds:
                raise waited_for_stopped(rank, what, seconds, each, processes[each])

    return look


def give_up_on_ended(rank: int, local_rank: int) -> Look:
    """The same while ``rank`` waits for the ranks to meet for the first time. Raises RankFailed when a rank that the
    launcher has started on this host has had no process for some seconds."""
    found = siblings.siblings_of(os.getpid())
    since = next_look = time.monotonic()
    first: int | None = None  # the first absent one: others end because of it

    def look() -> None:
        nonlocal since, next_look, first
        now = time.monotonic()
        if found is None or now < next_look:
            return
        next_look = now + siblings.LOOK_S
        gone = siblings.absent(found)
        if first is None or first not in gone:
            first, since = gone[0] if gone else None, now
        elif now - since > siblings.PATIENCE_S:
            lost = rank - local_rank + first
            raise RankFailed(
                f"rank {rank} waits for the other ranks, and rank {lost} has no process any more: it ended before "
                "ep_lib.init(). Its output says why",
                rank=lost,
            )

    return look


def waited_for_stopped(rank: int, what: str, seconds: float, peer: int, process: int) -> PeerTimeout:
    """The error of a rank that waited too long in ``what`` for ``peer``, whose process is stopped."""
    return stopped_error(
        rank,
        peer,
        f"rank {rank} waited {seconds:g} s in {what} for rank {peer}, whose process {process} is stopped (SIGSTOP, or "
        f"a debugger): continue it (kill -CONT {process}), or end it",
    )


def stopped_error(rank: int, peer: int, text: str) -> PeerTimeout:
    """The error of a rank that gave up because the process of ``peer`` is stopped."""
    return PeerTimeout(text, rank=rank, peer=peer, phase="bootstrap")


def processes_stopped(processes: Mapping[int, Identity]) -> dict[int, int]:
    """The ids of those ranks' processes that are stopped now."""
    return {rank: process.pid for rank, process in processes.items() if is_stopped(process)}


class Watched(Bootstrap):
    """A bootstrap whose collectives wait ``seconds`` only for a rank whose process is stopped. Making it is collective.

    Ranks that this one cannot see, on other hosts or in other containers, count as never stopped.
    """

    def __init__(self, bootstrap: Bootstrap, seconds: float, timeout: float) -> None:
        self._bootstrap, self._seconds = bootstrap, seconds
        self.kind, self.rank = bootstrap.kind, bootstrap.rank
        self.world_size, self.local_rank = bootstrap.world_size, bootstrap.local_rank
        look = give_up_on_ended(self.rank, self.local_rank) if self.kind in ("torchrun", "srun") else None
        said = [Identity(*each) for each in bootstrap.all_gather(tuple(Identity.of(os.getpid())), timeout, look)]
        place = said[self.rank].place
        self._seen = {rank: it for rank, it in enumerate(said) if it.place == place and rank != self.rank}

    def look(self, what: str) -> Look:
        """Raises PeerTimeout, like :func:`give_up_on_stopped`."""
        return give_up_on_stopped(self.rank, what, self._seconds, lambda: processes_stopped(self._seen))

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        return self._bootstrap.all_gather(obj, timeout, look or self.look("a host collective"))

    def leave_out(self, ranks: Iterable[int]) -> None:
        """Collectives do not wait for these ranks any more. The others call this, too."""
        if isinstance(self._bootstrap, StoreBootstrap):  # others report the end of a rank at once
            self._bootstrap.leave_out(ranks)

    def close(self, timeout: float | None = None) -> None:
        self._bootstrap.close(timeout)

"""Ranks of this host whose processes are stopped: host collectives wait two minutes for a rank that compiles, but for a
stopped one only as long as the time limit says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ep_lib.bootstrap.base import Bootstrap, Look
from ep_lib.errors import PeerTimeout
from ep_lib.processes import Identity, is_stopped

_LONGEST_STEP = 1.0  # seconds that count between two looks: this process may have been stopped itself


def give_up_on_stopped(rank: int, what: str, seconds: float, stopped: Callable[[], Mapping[int, int]]) -> Look:
    """To be called now and then while ``rank`` waits in the collective ``what``.

    ``stopped`` tells which ranks' processes are stopped now, with the process's id. Raises PeerTimeout when one of them
    has been for ``seconds``.
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
                raise PeerTimeout(
                    f"rank {rank} waited {seconds:g} s in {what} for rank {each}, whose process {processes[each]} is "
                    f"stopped (SIGSTOP, or a debugger): continue it (kill -CONT {processes[each]}), or end it",
                    rank=rank,
                    peer=each,
                    phase="bootstrap",
                    slot=-1,
                    seen=0,
                    expected=1,
                )

    return look


class Neighbours:
    """The processes of all ranks; making it is collective. Those that this one cannot see, on other hosts or in other
    containers, count as never stopped."""

    def __init__(self, bootstrap: Bootstrap, timeout: float) -> None:
        self._rank = bootstrap.rank
        said: list[Identity] = [
            Identity(*each) for each in bootstrap.all_gather(tuple(Identity.of(os.getpid())), timeout)
        ]
        own = said[self._rank]
        self._seen = {each: it for each, it in enumerate(said) if it.place == own.place and each != self._rank}

    def look(self, what: str, seconds: float) -> Look:
        """As :func:`give_up_on_stopped` has it."""
        return give_up_on_stopped(self._rank, what, seconds, self._stopped)

    def _stopped(self) -> dict[int, int]:
        return {rank: it.pid for rank, it in self._seen.items() if is_stopped(it)}

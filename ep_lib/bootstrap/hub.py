"""A hub that all ranks of one host talk to: a thread that gathers their objects and reports missing ranks.

``ep_lib.spawn`` runs it in the parent process over socket pairs; ``srun`` runs it in rank 0 behind a Unix socket.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Bootstrap, Look, dumps, loads, missing_error
from ep_lib.bootstrap.stopped import give_up_on_stopped, processes_stopped, stopped_error
from ep_lib.errors import EpError, PeerTimeout, RankFailed
from ep_lib.processes import Identity

_LOOK_SECONDS = 0.2
REPLY_GRACE = 5.0  # seconds past a collective's limit in which the hub's own answer must arrive


@dataclass
class _Gather:
    """A running collective: the objects received, and the limit of each waiting rank."""

    parts: dict[int, bytes] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)  # by missing rank: its stopped process
    looks: dict[int, Look] = field(default_factory=dict)  # of each waiting rank, at those


class Hub:
    """Serves one connection per rank from a daemon thread.

    Messages from a rank are ("gather", operation, timeout in s, bytes) and ("bye",); answers are ("all", list of
    bytes), ("timeout", missing ranks), ("stopped", rank, text) and ("failed", rank, reason).
    """

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._connections = dict(connections)
        self._world_size = len(connections)
        self._gathers: dict[int, _Gather] = {}
        self._gone: dict[int, str] = {}  # rank -> how it ended
        self._watched: dict[int, Identity] = {}
        self._patience = DEFAULT_TIMEOUT
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._stop = False
        self._thread = threading.Thread(target=self._serve, name="ep_lib-hub", daemon=True)
        self._thread.start()

    def rank_ended(self, rank: int, reason: str) -> None:
        """Tell all ranks that wait for ``rank``, now or later, that it has ended."""
        with self._lock:
            self._mark_gone(rank, reason)

    def watch(self, rank: int, process: Identity, seconds: float) -> None:
        """Report to ranks that wait for ``rank`` when its process has been stopped for ``seconds`` (equal for all
        ranks)."""
        with self._lock:
            self._watched[rank], self._patience = process, seconds

    def join(self, timeout: float) -> None:
        """Wait until every rank has left, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def close(self) -> None:
        """Stop serving; ranks that still wait see a closed connection."""
        if not self._stop:
            self._stop = True
            self._wake_writer.send_bytes(b"stop")
            self._thread.join(REPLY_GRACE)
            self._wake_reader.close()
            self._wake_writer.close()

    def _serve(self) -> None:
        while self._connections and not self._stop:
            for ready in wait([*self._connections.values(), self._wake_reader], self._seconds_to_deadline()):
                with self._lock:
                    for rank in [r for r, c in self._connections.items() if c is ready]:
                        self._read(rank)
            with self._lock:
                self._expire(time.monotonic())
                self._give_up_on_stopped()
        for connection in self._connections.values():
            connection.close()

    def _read(self, rank: int) -> None:
        try:
            message = self._connections[rank].recv()
        except (EOFError, OSError):
            message = None
        if message is not None and message[0] == "gather":
            _, operation, timeout, data = message
            gather = self._gathers.setdefault(operation, _Gather())
            gather.parts[rank] = data
            gather.deadlines[rank] = time.monotonic() + timeout
            what = f"host collective {operation} (all_gather or barrier)"
            gather.looks[rank] = give_up_on_stopped(rank, what, self._patience, lambda: gather.stopped)
            if len(gather.parts) == self._world_size:
                del self._gathers[operation]
                everything = [gather.parts[r] for r in range(self._world_size)]
                for peer in gather.deadlines:
                    self._answer(peer, ("all", everything))
            else:
                self._refuse_hopeless()
            return
        # A rank that leaves in order and one whose process died both end its connection; the reason differs.
        self._connections.pop(rank).close()
        self._mark_gone(rank, "its process ended" if message is None else "it had already finished")

    def _mark_gone(self, rank: int, reason: str) -> None:
        self._gone.setdefault(rank, reason)
        self._refuse_hopeless()

    def _refuse_hopeless(self) -> None:
        """Answer ranks that wait in a collective which an ended rank can no longer join."""
        for operation, gather in list(self._gathers.items()):
            lost = [rank for rank in sorted(self._gone) if rank not in gather.parts]
            if lost:
                for peer in list(gather.deadlines):
                    self._answer(peer, ("failed", lost[0], self._gone[lost[0]]))
                    del gather.deadlines[peer]
                if len(gather.parts) + len(lost) >= self._world_size:
                    del self._gathers[operation]

    def _expire(self, now: float) -> None:
        for gather in self._gathers.values():
            missing = [rank for rank in range(self._world_size) if rank not in gather.parts]
            for peer in [peer for peer, deadline in gather.deadlines.items() if deadline <= now]:
                self._answer(peer, ("timeout", missing))
                del gather.deadlines[peer]

    def _give_up_on_stopped(self) -> None:
        for gather in self._gathers.values():
            late = {rank: process for rank, process in self._watched.items() if rank not in gather.parts}
            gather.stopped = processes_stopped(late)
            for peer in list(gather.deadlines):
                try:
                    gather.looks[peer]()
                except PeerTimeout as error:
                    self._answer(peer, ("stopped", error.peer, str(error)))
                    del gather.deadlines[peer]

    def _seconds_to_deadline(self) -> float | None:
        with self._lock:
            deadlines = [deadline for gather in self._gathers.values() for deadline in gather.deadlines.values()]
            longest = _LOOK_SECONDS if self._watched else math.inf
        return min(longest, max(0.0, min(deadlines) - time.monotonic())) if deadlines else None

    def _answer(self, rank: int, message: tuple[Any, ...]) -> None:
        connection = self._connections.get(rank)
        if connection is not None:
            try:
                connection.send(message)
            except OSError:
                return  # it died meanwhile: its end of file is handled later


class HubBootstrap(Bootstrap):
    """A rank's side of a :class:`Hub`."""

    def __init__(self, connection: Connection, rank: int, world_size: int, kind: str, local_rank: int) -> None:
        self.kind = kind
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self._connection = connection
        self._operation = 0
        self._lock = threading.Lock()
        self._closed = False

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        """The hub itself detects the end of a rank's process; ``look`` is called as well."""
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        with self._lock:
            operation, self._operation = self._operation, self._operation + 1
            try:
                self._connection.send(("gather", operation, limit, dumps(obj)))
                deadline = time.monotonic() + limit + REPLY_GRACE
                while not self._connection.poll(_LOOK_SECONDS if look is not None else limit + REPLY_GRACE):
                    if look is not None:
                        look()
                    if time.monotonic() >= deadline:
                        raise EOFError
                kind, *rest = self._connection.recv()
            except EpError:  # from look(): some are an OSError, too
                raise
            except (EOFError, OSError) as error:
                message = f"rank {self.rank} lost its connection to the process that started the ranks"
                raise RankFailed(message, rank=0) from error
        if kind == "all":
            return [loads(data) for data in rest[0]]
        if kind == "timeout":
            raise missing_error(self.rank, self.world_size, rest[0], operation, limit)
        if kind == "stopped":
            raise stopped_error(self.rank, *rest)
        failed, reason = rest
        raise RankFailed(
            f"rank {failed} will not join host collective {operation} (all_gather or barrier): {reason}", rank=failed
        )

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._connection.send(("bye",))
        except OSError:
            pass  # the hub is gone already
        finally:
            self._connection.close()

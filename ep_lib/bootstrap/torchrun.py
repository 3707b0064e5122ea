"""Ranks started by torchrun, through its key-value store at MASTER_ADDR:MASTER_PORT.

Keys carry their own prefix and no process group is made: the program's own torch.distributed is not affected. The store
does not authenticate its clients, so its values are plain data (:mod:`ep_lib.bootstrap.wire`), and never unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Bootstrap, Look, check_rank, missing_error, read_int, within
from ep_lib.bootstrap.wire import dumps, loads
from ep_lib.config import Config
from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout, RankFailed

T = TypeVar("T")

_SLICE = 0.5  # seconds between two checks of all reasons to end a wait
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # seconds between two queries for a key
_GRACE = 1.0  # seconds beyond its own limit that the store gets to connect
_PIECE_BYTES = 4 << 20
_ABSENT = "-"  # a value that no rank sets
_worlds_made = 0  # a second init() in the same processes must not read the first one's keys


class _Found(NamedTuple):
    """The result of a search for a collective's keys: all values, or the ranks whose keys are missing, and those that
    have left."""

    values: dict[int, bytes]
    missing: list[int]
    lost: list[int]


class StoreBootstrap(Bootstrap):
    """Ranks that share a key-value store of torch.distributed, with exclusive use of keys with this prefix. In a
    collective every rank sets its key, waits for all keys, and removes its key of the previous collective. A rank that
    gives up removes its key, so that the ranks can meet there later.

    Besides collectives, a rank can :meth:`tell` its state, and read the others'.
    """

    def __init__(
        self, store: Any, prefix: str, rank: int, world_size: int, local_rank: int, kind: str = "torchrun"
    ) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        self.rank, self.world_size, self.local_rank, self.kind = rank, world_size, local_rank, kind
        self._store = dist.PrefixStore(prefix, store)
        self._store_error: type[Exception] = dist.DistError  # its connection ended, or another rank's did
        self._operation = 0
        self._pieces: list[str] = []  # keys that this rank has set for the previous operation
        self._left_out: frozenset[int] = frozenset()
        self._closed = False

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        operation = self._operation
        keys = {rank: f"{operation}/{rank}" for rank in range(self.world_size) if rank not in self._left_out}
        parts: list[Any] = [None] * self.world_size
        try:
            mine = self._answered(partial(self._set, keys[self.rank], dumps(obj)), limit)
            is_complete = False
            try:
                for rank, data in self._await(keys, operation, limit, look).items():
                    parts[rank] = loads(data, rank)
                is_complete = True
            finally:
                if not is_complete:
                    self._answered(partial(self._delete, mine), _GRACE)
            # All ranks have set a key of this operation, so all are past the one before.
            self._answered(partial(self._delete, self._pieces), limit)
        except self._store_error as error:
            first = str(error).partition("\n")[0]
            raise RankFailed(
                f"rank {self.rank} lost torchrun's store in host collective {operation} (all_gather or barrier): "
                f"{first}. Has rank 0 or torchrun ended?",
                rank=0,
            ) from error
        self._operation, self._pieces = operation + 1, mine
        return parts

    def leave_out(self, ranks: Iterable[int]) -> None:
        """Collectives continue without these ranks, whose objects are None. The others call this, too."""
        self._left_out = frozenset(ranks)

    def tell(self, word: object) -> None:
        """Publishes a message for :meth:`hear`, in place of this rank's earlier one. Local."""
        self._answered(partial(self._store.set, f"word/{self.rank}", dumps(word)))

    def hear(self, rank: int) -> Any:
        """The last message of ``rank``; None if there is none. Local."""
        said = self._answered(lambda: self._value(f"word/{rank}"))
        return None if said is None else loads(said, rank)

    def peek(self, rank: int) -> Any:
        """The object of ``rank`` in this rank's next collective; None if it is not there yet. Local."""
        said = self._answered(lambda: self._get(f"{self._operation}/{rank}"))
        return None if said is None else loads(said, rank)

    def _await(self, keys: dict[int, str], operation: int, limit: float, look: Look | None) -> dict[int, bytes]:
        """Waits for all ``keys``; returns their values."""
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            found = self._answered(partial(self._look_at, keys, min(left, _SLICE)), max(left, 0) + _GRACE)
            if found.values:
                return found.values
            if found.lost:
                raise RankFailed(
                    f"rank {found.lost[0]} will not join host collective {operation}: it had already finished",
                    rank=found.lost[0],
                )
            if left <= 0:
                raise missing_error(self.rank, self.world_size, found.missing, operation, limit)
            if look is not None:
                look()

    def _look_at(self, keys: dict[int, str], seconds: float) -> _Found:
        """The values of all ``keys``, or, after so many seconds, the missing ones."""
        if missing := self._missing(keys):
            self._wait(keys[missing[0]], seconds)
            missing = self._missing(keys)
        values = {} if missing else {rank: self._get(key) for rank, key in keys.items()}
        missing = missing or [rank for rank, value in values.items() if value is None]  # that one was removed again
        lost = [rank for rank in missing if self._store.check([f"bye/{rank}"])]
        # It may have set its key between our two checks, so check again.
        lost = [rank for rank in lost if not self._store.check([keys[rank]])]
        complete = {rank: value for rank, value in values.items() if value is not None}
        return _Found({} if missing else complete, missing, lost)

    def _missing(self, keys: dict[int, str]) -> list[int]:
        return [rank for rank, key in keys.items() if not self._store.check([key])]

    def _answered(self, step: Callable[[], T], limit: float | None = None) -> T:
        """The result of ``step``, which queries the store, within a limit: torch waits for ever for a store whose
        process is stopped."""
        seconds = limit or Config.from_environment().timeout_s or DEFAULT_TIMEOUT
        answer = within(seconds, lambda: (step(),))
        if answer is None:
            raise PeerTimeout(
                f"rank {self.rank} waited {seconds:.3g} s for an answer of torchrun's store: is the process that holds "
                "it, rank 0's or torchrun's agent, stopped?",
                rank=self.rank,
                peer=0,
                phase="bootstrap",
                slot=self._operation,
            )
        return answer[0]

    def _set(self, key: str, data: bytes) -> list[str]:
        """Sets a value in pieces, since the store takes at most 8 MiB at once; the key itself, with the number of
        pieces, is last."""
        pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
        keys = [f"{key}/{number}" for number in range(len(pieces))]
        for name, piece in zip(keys, pieces, strict=True):
            self._store.set(name, piece)
        self._store.set(key, str(len(pieces)))
        return [key, *keys]

    def _get(self, key: str) -> bytes | None:
        """The value of :meth:`_set`; None if there is none, or if it is just being removed."""
        count = self._value(key)
        if count is None or not (count.isdigit() and len(count) < 8):
            return count  # if it is not ours, loads() reports it
        pieces = [self._value(f"{key}/{number}") for number in range(int(count))]
        return None if None in pieces else b"".join(piece for piece in pieces if piece is not None)

    def _value(self, key: str) -> bytes | None:
        """The value of a key without waiting. The store's own get() waits minutes for a missing key; this operation
        (compare and set) returns the expected value for a missing one."""
        value = bytes(self._store.compare_set(key, _ABSENT, _ABSENT))
        return None if value == _ABSENT.encode() else value

    def _delete(self, keys: list[str]) -> None:
        with contextlib.suppress(self._store_error):  # the store has ended: no rank reads there any more
            for key in keys:
                self._store.delete_key(key)

    def _wait(self, key: str, seconds: float) -> None:
        """Waits until the key is set, at most so long. The store's own wait prints two lines at each timeout, and
        blocks Ctrl-C."""
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while not self._store.check([key]) and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._answered(partial(self._store.set, f"bye/{self.rank}", b""), timeout)
        except (RuntimeError, PeerTimeout):
            return  # the store's host has ended before us, or is stopped


class TorchrunBootstrap(StoreBootstrap):
    """The store that torchrun's variables name."""

    def __init__(self, environ: Mapping[str, str] | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        global _worlds_made
        env = os.environ if environ is None else environ
        try:
            dist: Any = importlib.import_module("torch.distributed")
        except ImportError as error:
            raise BackendUnavailable(
                f"RANK and WORLD_SIZE are set as by torchrun, but torch.distributed cannot be imported: {error}"
            ) from error
        absent = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
        if absent:
            raise BackendUnavailable(f"torchrun sets {', '.join(absent)}, but the environment lacks it; use torchrun")
        rank, size, local = (read_int(env, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        assert rank is not None and size is not None
        check_rank("torchrun", rank, size, local)
        port = check_port(env)
        # torchrun's agent usually hosts the store; without an agent rank 0 does, and shares the server with a process
        # group that the program may make at the same address.
        agent_hosts = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = rank == 0 and not agent_hosts

        def connect() -> Any:
            return dist.TCPStore(
                env["MASTER_ADDR"],
                port,
                size,
                is_master=is_master,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
                multi_tenant=True,
            )

        try:
            store = within(timeout + _GRACE, connect)
            if store is None:  # it waits for ever for a silent other program
                raise TimeoutError("what listens there says nothing; it may be another program")
        except (RuntimeError, ValueError, OSError) as error:
            first = str(error).partition("\n")[0]
            remedy = "Rank 0 or torchrun's agent must run there, and the port must be open"
            if is_master and "EADDRINUSE" in first:
                remedy = "Another program uses that port: choose another MASTER_PORT"
            raise BackendUnavailable(
                f"rank {rank} cannot reach torchrun's store at {env['MASTER_ADDR']}:{port} (MASTER_ADDR and "
                f"MASTER_PORT): {first}. {remedy}"
            ) from error
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix, _worlds_made = f"ep_lib/{attempt}/{_worlds_made}", _worlds_made + 1
        super().__init__(store, prefix, rank, size, rank if local is None else local)


def check_port(environ: Mapping[str, str]) -> int:
    """The validated MASTER_PORT. Raises ArgumentError."""
    port = read_int(environ, "MASTER_PORT")
    if port is None or not 0 < port < 65536:
        raise ArgumentError(f"the environment variable MASTER_PORT is {port}; it must be a port, 1 to 65535")
    return port

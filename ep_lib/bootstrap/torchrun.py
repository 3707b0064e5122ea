"""Ranks started by torchrun, through its key-value store at MASTER_ADDR:MASTER_PORT.

Keys carry their own prefix and no process group is made: the program's own torch.distributed stays as it was. The store
asks nobody who they are, so what comes from there is plain data (:mod:`ep_lib.bootstrap.wire`), and never unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Look, check_rank, missing_error, read_int, within
from ep_lib.bootstrap.wire import dumps, loads
from ep_lib.config import Config
from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout, RankFailed

T = TypeVar("T")

_SLICE = 0.5  # seconds between two looks at all that may end a wait
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # seconds between two questions whether a key is there
_GRACE = 1.0  # seconds beyond its own limit that the store gets to connect
_PIECE_BYTES = 4 << 20
_ABSENT = "-"  # which no rank sets
_worlds_made = 0  # a second init() in the same processes must not read the first one's keys


class _Found(NamedTuple):
    """Of the keys of a collective: all values, or the ranks whose keys are missing, and those that have left."""

    values: list[bytes]
    missing: list[int]
    lost: list[int]


class StoreBootstrap:
    """Ranks that share a key-value store of torch.distributed, in which nobody else uses keys of that prefix. Every
    rank sets its key, waits for all keys, and removes its key of the previous collective. One that gives up takes its
    key back, so that the ranks can meet there later.

    Beside collectives a rank can :meth:`tell` what happened to it, and look at what others have said.
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
        self._closed = False

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        operation = self._operation
        keys = [f"{operation}/{rank}" for rank in range(self.world_size)]
        try:
            mine = self._answered(partial(self._set, keys[self.rank], dumps(obj)), limit)
            is_complete = False
            try:
                parts = [loads(data, rank) for rank, data in enumerate(self._await(keys, operation, limit, look))]
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

    def tell(self, word: object) -> None:
        """What others can :meth:`hear` from now on, in place of what this rank told before. Local."""
        self._answered(partial(self._store.set, f"word/{self.rank}", dumps(word)))

    def hear(self, rank: int) -> Any:
        """What ``rank`` has told last; None if nothing. Local."""
        said = self._answered(lambda: self._value(f"word/{rank}"))
        return None if said is None else loads(said, rank)

    def peek(self, rank: int) -> Any:
        """What ``rank`` has said in the collective that this rank would join next; None if it is not there. Local."""
        said = self._answered(lambda: self._get(f"{self._operation}/{rank}"))
        return None if said is None else loads(said, rank)

    def _await(self, keys: list[str], operation: int, limit: float, look: Look | None) -> list[bytes]:
        """What stands at all ``keys``, once it does."""
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

    def _look_at(self, keys: list[str], seconds: float) -> _Found:
        """What stands at all ``keys``, or, after so many seconds, where nothing does."""
        if missing := self._missing(keys):
            self._wait(keys[missing[0]], seconds)
            missing = self._missing(keys)
        values = [] if missing else [self._get(key) for key in keys]
        missing = missing or [rank for rank, value in enumerate(values) if value is None]  # that one took it back
        lost = [rank for rank in missing if self._store.check([f"bye/{rank}"])]
        # It may have set its key between our two looks, so look again.
        lost = [rank for rank in lost if not self._store.check([keys[rank]])]
        return _Found([] if missing else [value for value in values if value is not None], missing, lost)

    def _missing(self, keys: list[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def _answered(self, step: Callable[[], T], limit: float | None = None) -> T:
        """What ``step`` returns, which asks the store. Torch waits without end for a store whose process is stopped."""
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
                seen=0,
                expected=1,
            )
        return answer[0]

    def _set(self, key: str, data: bytes) -> list[str]:
        """Sets a value in pieces, since the store takes 8 MiB at once; the key itself, which says how many, is last."""
        pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
        keys = [f"{key}/{number}" for number in range(len(pieces))]
        for name, piece in zip(keys, pieces, strict=True):
            self._store.set(name, piece)
        self._store.set(key, str(len(pieces)))
        return [key, *keys]

    def _get(self, key: str) -> bytes | None:
        """What :meth:`_set` has put there; None if nothing, also where it is being taken back at this moment."""
        count = self._value(key)
        if count is None or not (count.isdigit() and len(count) < 8):
            return count  # if not ours, loads() says so
        pieces = [self._value(f"{key}/{number}") for number in range(int(count))]
        return None if None in pieces else b"".join(piece for piece in pieces if piece is not None)

    def _value(self, key: str) -> bytes | None:
        """The store's own get() waits for a key that is not there, for minutes; this is its one question that does not:
        a key that is absent is answered by what was expected there."""
        value = bytes(self._store.compare_set(key, _ABSENT, _ABSENT))
        return None if value == _ABSENT.encode() else value

    def _delete(self, keys: list[str]) -> None:
        with contextlib.suppress(self._store_error):  # the store has ended: nobody reads there any more
            for key in keys:
                self._store.delete_key(key)

    def _wait(self, key: str, seconds: float) -> None:
        """Until the key is there, or so long. The store's own wait prints two lines each time that its limit ends it,
        and lets no Ctrl-C through."""
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while not self._store.check([key]) and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def barrier(self, timeout: float | None = None) -> None:
        self.all_gather(None, timeout)

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._answered(partial(self._store.set, f"bye/{self.rank}", b""), timeout)
        except (RuntimeError, PeerTimeout):
            return  # the store's host has left before us, or is stopped


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
        # torchrun's agent usually hosts the store already; without an agent rank 0 does, and shares the server with
        # a process group that the program may make at the same address.
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
            if store is None:  # it waits for ever for another program that says nothing
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
    """MASTER_PORT. Raises ArgumentError."""
    port = read_int(environ, "MASTER_PORT")
    if port is None or not 0 < port < 65536:
        raise ArgumentError(f"the environment variable MASTER_PORT is {port}; it must be a port, 1 to 65535")
    return port

"""The Protocol of all bootstraps, a world of one, and shared code."""

from __future__ import annotations

import io
import pickle
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any, ClassVar, Protocol, TypeVar

import cloudpickle

from ep_lib.errors import ArgumentError, PeerTimeout, RankFailed, RankMismatchError

DEFAULT_TIMEOUT = 120.0  # seconds that a collective waits: long enough for a slow import on one rank

T = TypeVar("T")
CLOSE = "close()"  # the operation of ranks that leave
Look = Callable[[], None]


class Bootstrap(Protocol):
    """One object per rank; every method but ``close`` is collective and called in the same order by every rank.

    Attributes: ``kind`` ("local", "mpi", "torchrun", "srun", "group" or "single"), ``rank``, ``world_size`` and
    ``local_rank`` (this rank's number among the ranks of its host, which selects the GPU; for a group the GPU's
    number).
    """

    kind: str
    rank: int
    world_size: int
    local_rank: int

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        """Every rank's ``obj``, in rank order.

        ``timeout`` is in seconds (None: 120). ``look`` is called now and then while others are missing; its exceptions
        end the wait. Raises PeerTimeout with the missing ranks at the limit, and RankFailed when a rank has ended.
        """

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has called it; limits and errors as in ``all_gather``."""
        self.all_gather(None, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Leave the world in order; the other ranks may continue. A rank that they need for their collectives waits for
        them, up to ``timeout`` seconds (None: 120). Calling it twice does no harm."""


def _reduced(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    return _code, (*cloudpickle.Pickler.dispatch_table[CodeType](code), code.co_filename)


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with the file of each function: since 3.1.3 cloudpickle replaces it by "<dynamic-code>", and
    tracebacks of other processes would not show the user's line."""

    dispatch_table: ClassVar = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)


def dumps(obj: object) -> bytes:
    """Pickle a notebook's definitions by value, so that a process without the notebook can load them. Functions keep
    the names of their files."""
    with io.BytesIO() as file:
        _Pickler(file).dump(obj)
        return file.getvalue()


def loads(data: bytes) -> Any:
    """The inverse of :func:`dumps`. Only for data from an inherited socket pair, or from a peer that knows the run's
    secret: see :mod:`ep_lib.bootstrap.wire` for other data."""
    return pickle.loads(data)


def within(timeout: float, step: Callable[[], T]) -> T | None:
    """Runs ``step`` in a thread; None after ``timeout`` seconds. For talking to a process that may be stopped or
    foreign, and so may neither answer nor close the connection: the waiting thread is then abandoned."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(step())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="ep_lib-within", daemon=True)
    thread.start()
    thread.join(timeout)
    if errors:
        raise errors[0]
    return results[0] if results else None


def rank_list(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 1, 2"."""
    numbers = sorted(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def missing_error(rank: int, world_size: int, missing: Iterable[int], operation: int, timeout: float) -> PeerTimeout:
    """The error of a rank that waited ``timeout`` seconds in collective number ``operation`` for ``missing``."""
    late = sorted(missing)
    return PeerTimeout(
        f"rank {rank} waited {timeout:g} s in host collective {operation} (all_gather or barrier) for "
        f"{rank_list(late)} of {world_size}. Every rank must call the same collectives in the same order: look for a "
        "rank that returned early, waits in a kernel, or is still compiling.",
        rank=rank,
        peer=late[0],
        phase="bootstrap",
        slot=operation,
        seen=world_size - len(late),
        expected=world_size,
    )


def require_same(what: str, values: list[Any]) -> None:
    """Raises RankMismatchError unless all ranks have the same value."""
    if len(set(values)) > 1:
        listing = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise RankMismatchError(f"{what} must be the same on all ranks; got {listing}")


def meet(
    bootstrap: Bootstrap, what: str, obj: object, timeout: float | None = None, look: Look | None = None
) -> list[Any]:
    """Every rank's ``obj``, in rank order, if all are in the operation ``what``.

    Raises RankFailed if one is closing, RankMismatchError if one is in another operation, and the errors of
    all_gather().
    """
    gathered = bootstrap.all_gather((what, obj), timeout, look)
    if any(other != what for other, _ in gathered):
        closing = [rank for rank, (other, _) in enumerate(gathered) if other == CLOSE]
        if closing and what != CLOSE:
            raise RankFailed(
                f"rank {closing[0]} is closing, after an error or at its end; rank {bootstrap.rank} waits in {what}",
                rank=closing[0],
            )
        calls = ", ".join(f"rank {rank}: {other}" for rank, (other, _) in enumerate(gathered))
        raise RankMismatchError(f"the ranks are in different collective operations: {calls}")
    return [theirs for _, theirs in gathered]


def read_int(environ: Mapping[str, str], *names: str) -> int | None:
    """The first variable that is set, as a number; None if none is. Raises ArgumentError."""
    for name in names:
        if value := environ.get(name, "").strip():
            try:
                return int(value)
            except ValueError:
                raise ArgumentError(
                    f"the environment variable {name}, which the launcher sets, is {value!r}; it must be a whole number"
                ) from None
    return None


def check_rank(launcher: str, rank: int, world_size: int | None, local_rank: int | None) -> None:
    """Raises ArgumentError for impossible numbers from the environment."""
    if world_size is not None and world_size < 1:
        raise ArgumentError(f"the environment says that {launcher} started {world_size} ranks; there is at least one")
    if rank < 0 or (world_size is not None and rank >= world_size):
        ranks = "0 or more" if world_size is None else f"0 to {world_size - 1}, since it started {world_size}"
        raise ArgumentError(f"the environment says that this is {launcher}'s rank {rank}; ranks are {ranks}")
    if local_rank is not None and local_rank < 0:
        raise ArgumentError(f"the environment says that this is the local rank {local_rank}; it must be 0 or more")


class LateBootstrap(Bootstrap):
    """The bootstrap of a process that replaces a rank. Until it :meth:`has_joined`, it answers collectives alone (each
    rank's object is its own), so that it can repeat the others' setup; after that it takes no part in host
    collectives."""

    kind = "late"

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = self.local_rank = rank
        self.world_size = world_size
        self._joined = False

    def has_joined(self) -> None:
        """The other ranks continue together with this one."""
        self._joined = True

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        if self._joined:
            raise RankFailed(
                f"rank {self.rank} is a process that has taken another's place, and has no part in host collectives "
                "(all_gather, barrier, a new Buffer) after connect_ranks",
                rank=self.rank,
            )
        return [loads(dumps(obj)) for _ in range(self.world_size)]

    def close(self, timeout: float | None = None) -> None:
        return None


class SingleBootstrap(Bootstrap):
    """A world of one rank, which never waits."""

    kind = "single"
    rank = 0
    world_size = 1
    local_rank = 0

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        return [loads(dumps(obj))]

    def close(self, timeout: float | None = None) -> None:
        return None

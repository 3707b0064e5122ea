"""The inside of a process that ``ep_lib.spawn`` started: join the hub, make a rank, call main, send the outcome."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ep_lib.bootstrap.base import Bootstrap, dumps, loads
from ep_lib.bootstrap.hub import HubBootstrap
from ep_lib.errors import RankFailed
from ep_lib.runtime.arguments import run_main


@dataclass(frozen=True)
class RemoteError:
    """What a rank sends when it fails: the exception's pickle (None if it cannot be pickled) and its text."""

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Job:
    """The job of a rank: plain values first, readable before any of the user's modules are imported.

    ``call`` is the pickle of (make_rank, main, args); ``argv`` is sys.argv of the parent process.
    """

    rank: int
    ranks: int
    heap_bytes: int | None
    timeout: float | None
    argv: list[str]
    call: bytes


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: the pickle of main's return value, or the error."""

    result: bytes | None
    error: RemoteError | None


MakeRank = Callable[[Bootstrap, int | None, float | None], Any]


def make_cuda_rank(
    bootstrap: Bootstrap,
    heap_bytes: int | None,
    timeout: float | None,
    transport: str = "auto",
    gpus: int | None = None,
) -> Any:
    """A Rank on the GPU number ``bootstrap.local_rank``, or on its part of one of ``gpus`` that the ranks share."""
    from ep_lib.backends.cuda import CudaBackend
    from ep_lib.runtime.rank import Rank

    return Rank(CudaBackend(bootstrap, heap_bytes=heap_bytes, kernel_timeout=timeout, transport=transport, gpus=gpus))


def run(control_fd: int, hub_fd: int) -> None:
    """Entry point of the process; the file descriptors are socket pairs to the parent."""
    faulthandler.enable()
    control = Connection(os.dup(control_fd))
    os.close(control_fd)
    job: Job = loads(control.recv_bytes())
    threading.Thread(target=_end_with_parent, args=(control,), name="ep_lib-lifeline", daemon=True).start()
    sys.argv[:] = job.argv
    bootstrap = HubBootstrap(Connection(hub_fd), job.rank, job.ranks, "local", job.rank)
    process = os.getpid()
    outcome, is_healthy = _work(job, bootstrap)
    if os.getpid() != process:  # a forked child that has returned from main
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):  # the parent has gone
        control.send_bytes(dumps(outcome))
    if is_healthy:
        bootstrap.close()
    else:
        # No farewell to the hub, so that ranks that wait for this one hear that it failed.
        # Python's exit would wait for kernels that may never end; the driver removes them with the process.
        os._exit(1)


def _work(job: Job, bootstrap: HubBootstrap) -> tuple[Outcome, bool]:
    process = os.getpid()
    try:
        make_rank, main, args = loads(job.call)  # imports main's modules, such as torch, before the backend starts
        rank = make_rank(bootstrap, job.heap_bytes, job.timeout)
        result = run_main(main, rank, args)
        if not rank.is_closed:
            rank.synchronize()
            rank.close()
        try:
            return Outcome(dumps(result), None), True
        except Exception as error:
            kind = type(result).__name__
            raise TypeError(f"main returned a {kind} that cannot be sent to the parent process: {error}") from error
    except BaseException as error:  # everything that main can raise goes to the parent
        if os.getpid() != process:  # a forked child: that is its own end
            raise
        return Outcome(None, encode(error)), False


def _end_with_parent(control: Connection) -> None:
    """Ends this process with its parent. The parent never writes again; end of file means that it has died or abandoned
    this rank."""
    with contextlib.suppress(OSError, EOFError):
        control.recv_bytes()
    os._exit(1)


def socket_pair() -> tuple[Connection, int]:
    """One end as a Connection for this process, the other as a file descriptor for a child to inherit."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Connection(ours.detach()), theirs.detach()


# ---- exceptions that cross a process boundary with their type, attributes and traceback text ----------------------
def encode(error: BaseException) -> RemoteError:
    """Pack an exception. Its type is kept where it can be pickled and survives the way back."""
    text = "".join(traceback.format_exception(error))
    pickled: bytes | None = None
    if isinstance(error, Exception):  # SystemExit and KeyboardInterrupt must not end the parent as well
        for form in (error, (type(error), error.args, error.__dict__)):
            try:
                pickled = dumps(form)
                _rebuild(loads(pickled))
                break
            except Exception:  # noqa: BLE001 - any error of a user's __reduce__ or __init__: try the next form
                pickled = None
    return RemoteError(pickled, type(error).__name__, str(error), text)


def decode(remote: RemoteError, rank: int) -> Exception:
    """The exception that ``rank`` raised, with notes that say which rank and where; RankFailed if it was lost."""
    error = rebuilt(remote) or RankFailed(f"rank {rank} raised {remote.type_name}: {remote.message}", rank=rank)
    error.add_note(f"raised in rank {rank}; its traceback there:\n{remote.traceback.rstrip()}")
    return error


def rebuilt(remote: RemoteError) -> Exception | None:
    """The packed exception; None if it cannot be unpickled here."""
    if remote.pickled is None:
        return None
    try:
        return _rebuild(loads(remote.pickled))
    except Exception:  # noqa: BLE001 - its type may not be importable here
        return None


def _rebuild(form: object) -> Exception:
    """An exception from (type, args, attributes): those whose __init__ takes more than ``args`` do not unpickle
    otherwise."""
    if isinstance(form, Exception):
        return form
    assert isinstance(form, tuple)
    kind, args, attributes = form
    try:
        error: Exception = kind.__new__(kind, *args)
    except TypeError:  # a class of two built-in bases, such as OutOfSymmetricMemory, takes its first base's
        error = Exception.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error

"""Ranks started by mpirun or mpiexec (Open MPI, MPICH, ...), through mpi4py.

Point-to-point messages instead of MPI_Allgather: an MPI collective that never ends cannot be cancelled, and cannot name
the missing ranks. Worlds here have at most 64 ranks, so the number of messages does not matter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ep_lib.bootstrap import siblings
from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Bootstrap, Look, missing_error, read_int
from ep_lib.bootstrap.stopped import give_up_on_stopped, processes_stopped
from ep_lib.bootstrap.wire import dumps, loads
from ep_lib.errors import BackendUnavailable, PeerTimeout, RankFailed, everywhere
from ep_lib.processes import Identity, has_ended
from ep_lib.shared_memory import MAKE_ROOM, SHARED_MEMORY, free_bytes

_BYE_TAG = 0
_EXIT_TAG = 30_001
_POLL_SECONDS = 0.0005
_LOOK_SECONDS = 0.2
_EXIT_POLL_SECONDS = 0.01
_SHARED_NAMES = rf"{SHARED_MEMORY}/mpich_shm_\S+"
_SHARED_BYTES = 1_064_000  # of MPICH 5.0, per rank of the host
_ends_mpi = False  # whether ep_lib calls MPI_Finalize, not mpi4py
# Ends its parent unless the parent reports its start in time; if the parent dies meanwhile, removes its shared memory.
# It is a process because MPI_Init blocks all other Python threads.
_WATCH = """
import os, re, runpy, select, sys, time
seconds, text, of_absent, siblings, pattern, *signals = sys.argv[1:]
siblings = runpy.run_path(siblings)
parent, names, end = os.getppid(), set(), time.monotonic() + float(seconds)
found, next_look, since, lost = siblings["siblings_of"](parent), 0, 0, None
while time.monotonic() < end and not select.select([0], [], [], 0.01)[0]:
    if found and time.monotonic() > next_look:
        now, absent = time.monotonic(), siblings["absent"](found)
        next_look = now + siblings["LOOK_S"]
        if not absent or lost not in absent:
            lost, since = (absent or [None])[0], now
        elif now - since > siblings["PATIENCE_S"]:
            text, end = of_absent.format(lost), 0
    try:
        with open(f"/proc/{parent}/maps") as maps:
            names.update(re.findall(pattern, maps.read()))
    except OSError:
        pass
is_late = not select.select([0], [], [], 0)[0]
if is_late:
    os.write(2, text.encode())
    for number in signals:
        if os.getppid() == parent:
            os.kill(parent, int(number))
            select.select([0], [], [], 2)
if is_late or not os.read(0, 1):
    for name in names:
        try:
            os.unlink(name)
        except OSError:
            pass
"""


class MpiBootstrap(Bootstrap):
    """Uses a duplicate of MPI.COMM_WORLD, or of another ``communicator``, so that its messages never mix with the
    program's own."""

    kind = "mpi"

    def __init__(
        self,
        expected_world_size: int | None = None,
        local_rank: int | None = None,
        communicator: Any = None,
        patience: float | None = None,
    ) -> None:
        """``patience``: seconds that this process waits for a stopped one, if it ends without ``close``."""
        if "mpi4py.MPI" not in sys.modules:
            _require_shared_memory()
        with limited_start(DEFAULT_TIMEOUT):
            try:
                self._mpi = MPI = _import_mpi()
            except ImportError as error:
                raise BackendUnavailable(
                    "This process was started by mpirun, but Python cannot import mpi4py "
                    f"({error}). Install it where the ranks run: pip install mpi4py"
                ) from error
            _survive_deaths()
            self._comm = (MPI.COMM_WORLD if communicator is None else communicator).Dup()
            _unname_shared_memory()
        size = self._comm.Get_size()
        if expected_world_size is not None and size != expected_world_size:
            raise BackendUnavailable(
                f"mpirun started {expected_world_size} ranks, but mpi4py sees a world of {size}: mpi4py uses another "
                f"MPI ({MPI.Get_library_version().splitlines()[0].strip()}) than mpirun. Start with the mpirun of that "
                "MPI, or build mpi4py for yours: pip install --no-binary mpi4py mpi4py"
            )
        self.rank = int(self._comm.Get_rank())
        self.world_size = int(size)
        if local_rank is None:
            host = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
            local_rank = int(host.Get_rank())
            host.Free()
        self.local_rank = local_rank
        self._operation = 0
        self._gone: set[int] = set()
        self._closed = False
        self._patience = DEFAULT_TIMEOUT if patience is None else patience
        self._processes = [Identity(*each) for each in self.all_gather(tuple(Identity.of(os.getpid())))]
        atexit.register(self._prepare_finalize)
        atexit.register(self.close)  # first: tells the others that this rank has left the collectives

    def all_gather(self, obj: object, timeout: float | None = None, look: Look | None = None) -> list[Any]:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        operation, self._operation = self._operation, self._operation + 1
        tag = 1 + operation % 30_000  # MPI promises tags up to 32767
        data = dumps(obj)
        parts: dict[int, bytes] = {self.rank: data}
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        sends = [self._comm.Isend([data, self._mpi.BYTE], dest=rank, tag=tag) for rank in others]
        deadline, next_look = time.monotonic() + limit, time.monotonic() + _LOOK_SECONDS
        while len(parts) < self.world_size or sends:
            for rank in others:
                if rank not in parts and self._comm.Iprobe(source=rank, tag=tag):
                    parts[rank] = self._receive(rank, tag)
            sends = [request for request in sends if not request.Test()]
            missing = [rank for rank in others if rank not in parts]
            self._note_leavers(missing)
            # A rank's earlier messages arrive before its farewell, so they can be read now.
            lost = [r for r in missing if r in self._gone and not self._comm.Iprobe(source=r, tag=tag)]
            if lost:
                raise RankFailed(
                    f"rank {lost[0]} will not join host collective {operation}: it had already finished", rank=lost[0]
                )
            if missing or sends:
                if look is not None and time.monotonic() > next_look:
                    look()
                    next_look = time.monotonic() + _LOOK_SECONDS
                if time.monotonic() > deadline:
                    raise missing_error(self.rank, self.world_size, missing or others, operation, limit)
                time.sleep(_POLL_SECONDS)
        return [loads(parts[rank], rank) for rank in range(self.world_size)]

    def _receive(self, rank: int, tag: int) -> bytes:
        """An arrived message, as bytes: mpi4py's own receive would unpickle it."""
        status = self._mpi.Status()
        self._comm.Probe(source=rank, tag=tag, status=status)
        data = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([data, self._mpi.BYTE], source=rank, tag=tag)
        return bytes(data)

    def _note_leavers(self, missing: list[int]) -> None:
        for rank in missing:
            if rank not in self._gone and self._comm.Iprobe(source=rank, tag=_BYE_TAG):
                self._receive(rank, _BYE_TAG)
                self._gone.add(rank)

    def close(self, timeout: float | None = None) -> None:
        if self._closed or self._is_forked():
            return
        self._closed = True
        atexit.unregister(self.close)
        if timeout is not None:
            self._patience = round(timeout, 1)
        if not self._mpi.Is_finalized():
            self._tell_others(_BYE_TAG)

    def _is_forked(self) -> bool:
        """Whether this process is a child of the rank's, which must not speak for it."""
        return os.getpid() != self._processes[self.rank].pid

    def _tell_others(self, tag: int) -> None:
        """Notifies the other ranks by eager, empty messages, without waiting, since those ranks may never read them."""
        for rank in range(self.world_size):
            if rank != self.rank:
                self._comm.Isend([b"", self._mpi.BYTE], dest=rank, tag=tag)

    def _prepare_finalize(self) -> None:
        """Runs at the end of this process, before MPI_Finalize, which would wait for ever for a rank that never calls
        it.

        Waits until every other rank is here, too, or has ended. If one has ended, MPI_Finalize must not wait for the
        others. If one is stopped, this ends all ranks (MPI_Abort): mpiexec would wait for it.
        """
        if self._is_forked():
            if not _ends_mpi:
                sys.stderr.write(
                    f"ep_lib: process {os.getpid()}, which was forked from rank {self.rank}'s, ends here: Python's end "
                    "would end MPI, which is its parent's. End it by os._exit(code), or call ep_lib.init() before "
                    "`from mpi4py import MPI`\n"
                )
                sys.stderr.flush()
                os._exit(1)
            return
        if self._mpi.Is_finalized() or _aborts():
            return
        self._tell_others(_EXIT_TAG)
        place = self._processes[self.rank].place
        awaited = {rank: it for rank, it in enumerate(self._processes) if rank != self.rank}
        look = give_up_on_stopped(
            self.rank,
            "MPI_Finalize",
            self._patience,
            lambda: processes_stopped({rank: it for rank, it in awaited.items() if it.place == place}),
        )
        someone_ended, stuck = False, ""
        while awaited:
            for rank, process in list(awaited.items()):
                if self._comm.Iprobe(source=rank, tag=_EXIT_TAG):
                    del awaited[rank]
                elif process.place == place and has_ended(process):
                    del awaited[rank]
                    someone_ended = True
            try:
                look()
            except PeerTimeout as error:
                stuck = str(error)
                del awaited[error.peer]
            time.sleep(_EXIT_POLL_SECONDS)
        if stuck or (someone_ended and not _finalize_alone()):
            sys.stderr.write(f"ep_lib: all ranks end now: {stuck or 'a rank has ended, and MPI_Finalize needs all'}\n")
            sys.stderr.flush()
            self._comm.Abort(1)


def _import_mpi() -> Any:
    """mpi4py's MPI, which starts MPI. If this is the first import, ep_lib also ends MPI: mpi4py would do so even in
    forked children, after all Python code there."""
    global _ends_mpi
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        if mpi4py.rc.finalize is None:
            mpi4py.rc.finalize, _ends_mpi = False, True
            atexit.register(_finalize, os.getpid())  # before those of bootstraps, so that it comes after them
    from mpi4py import MPI

    return MPI


def _finalize(process: int) -> None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if os.getpid() == process and mpi is not None and not mpi.Is_finalized() and not _aborts():
        mpi.Finalize()


def _aborts() -> bool:
    """Whether mpi4py is about to end all ranks at once, because of an exception here."""
    return getattr(sys, "last_value", None) is not None and "mpi4py.run" in sys.modules


@contextlib.contextmanager
def limited_start(seconds: float) -> Iterator[None]:
    """A context for starting MPI: ``MPI_Init`` waits for ever for a rank that never calls it, and cannot be
    interrupted. After ``seconds`` this process ends with a message, and mpiexec ends the others."""
    text = (
        f"ep_lib: process {os.getpid()} has waited {seconds:g} s in MPI_Init for the other ranks. Has one raised, or "
        "returned, before ep_lib.init()? Its output says why. A script that begins with `from mpi4py import MPI`, "
        "started by `mpiexec -n N python -m mpi4py SCRIPT`, ends all ranks at once when one raises\n"
    )
    of_absent = (
        f"ep_lib: process {os.getpid()} waits in MPI_Init for the other ranks, and number {{}} of this host's (from 0) "
        "has no process any more: it ended before ep_lib.init(). Its output says why\n"
    )
    signals = [str(int(number)) for number in (signal.SIGTERM, signal.SIGKILL)]
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _WATCH,
        str(seconds),
        text,
        of_absent,
        siblings.__file__,
        _SHARED_NAMES,
        *signals,
    ]
    # In a session of its own: mpiexec kills the process groups of all ranks when one dies.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watch:
        assert watch.stdin is not None
        try:
            yield
        finally:
            with contextlib.suppress(BrokenPipeError):
                watch.stdin.write(b".")
                watch.stdin.flush()


def _require_shared_memory() -> None:
    """Raises BackendUnavailable if MPICH would end all ranks by a bus error, for lack of shared memory."""
    ranks = read_int(os.environ, "MPI_LOCALNRANKS")  # set by MPICH's mpiexec
    if ranks is None or ranks < 2:
        return
    needed = ranks * _SHARED_BYTES
    try:
        # The first rank allocates the memory of all.
        available = free_bytes() + sum(path.stat().st_blocks * 512 for path in SHARED_MEMORY.glob("mpich_shm_*"))
    except OSError:
        return  # a file disappeared: all ranks have started, or another program has
    if available < needed:
        raise everywhere(
            BackendUnavailable(
                f"{SHARED_MEMORY} has {available} bytes left, and MPI needs {needed} there for the {ranks} ranks of "
                f"this host: {MAKE_ROOM}"
            )
        )


def _survive_deaths() -> None:
    """MPICH's ``mpiexec -disable-auto-cleanup`` sends SIGUSR1 to all others when a rank dies, which would end them."""
    with contextlib.suppress(ValueError):  # outside of the main thread
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, lambda *_: None)  # not SIG_IGN, which child programs would inherit


def _finalize_alone() -> bool:
    """Makes MPI_Finalize ignore the other ranks, by a variable of MPICH's (MPI_T). False with another MPI."""
    libraries = set(re.findall(r"\S+/libmpi\S*\.so\S*", Path("/proc/self/maps").read_text()))
    for library in map(ctypes.CDLL, libraries):
        number, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        calls: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("init_thread", (0, ctypes.byref(ctypes.c_int()))),
            ("cvar_get_index", (b"MPIR_CVAR_NO_COLLECTIVE_FINALIZE", ctypes.byref(number))),
            ("cvar_handle_alloc", (number, None, ctypes.byref(handle), ctypes.byref(count))),
            ("cvar_write", (handle, ctypes.byref(ctypes.c_int(1)))),
        )
        if all(getattr(library, f"MPI_T_{name}")(*arguments) == 0 for name, arguments in calls):
            return True
    return False


def _unname_shared_memory() -> None:
    """Unlinks MPICH's shared memory, which keeps its name until the end, so that a killed rank leaves 3 MB per run
    behind. All ranks have mapped it by now, since all have duplicated the world."""
    with contextlib.suppress(OSError):  # no /proc, or not ours
        for name in set(re.findall(_SHARED_NAMES, Path("/proc/self/maps").read_text())):
            Path(name).unlink(missing_ok=True)

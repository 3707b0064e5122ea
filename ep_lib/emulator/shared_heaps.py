"""The symmetric heaps of ranks that are processes of one host: POSIX shared memory, each rank's a file in /dev/shm.

A file has a name only until every rank has mapped it, so that no file stays behind, even if ranks are killed. Its owner
locks it and never unlocks it: a rank that can take the lock knows that the owner's process has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import struct
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from ep_lib.bootstrap.base import Bootstrap, require_same
from ep_lib.emulator.machine import Machine
from ep_lib.errors import BackendUnavailable, OutOfSymmetricMemory, PeerTimeout, RankFailed, RankMismatchError
from ep_lib.require import refuse
from ep_lib.shared_memory import MAKE_ROOM, SHARED_MEMORY, free_bytes
from ep_lib.version import __version__

ENDED = "was a process that has ended"
_PREFIX = f"ep_lib-{os.getuid()}-"
_TAIL_BYTES = 4096  # behind the heap: the secret, then the seats
_NOTE = 32  # there: the rank that this rank blames
_LEAVES = 40  # there: whether this rank is leaving
_ERROR, _ERROR_BYTES = 2048, 512  # there: what this rank has raised, as text
_SEATS, _SEAT = 64, struct.Struct("<QQQ")  # a seat: process id, descriptor there, when it was taken
_SEAT_SECONDS = 0.01  # between two checks of a seat


class Invitation(NamedTuple):
    """The content of :attr:`SharedHeaps.invitation`."""

    heap_bytes: int
    secret: bytes
    processes: list[tuple[int, int]]

    @classmethod
    def read(cls, text: str) -> Invitation:
        """Parses an invitation. Raises ArgumentError for an invalid text, RankMismatchError for one of another
        version."""
        try:
            said = json.loads(text)
            processes = [(int(pid), int(descriptor)) for pid, descriptor in said["processes"]]
            found = cls(int(said["heap_bytes"]), str(said["secret"]).encode(), processes)
            version = str(said["version"])
        except (ValueError, TypeError, KeyError):
            refuse("invitation", text, "what rank.invitation() has returned")
        if version != __version__:
            raise RankMismatchError(f"the other ranks run ep_lib {version}, and this process {__version__}")
        return found


class SharedHeaps:
    """The heaps of a host's ranks, mapped into this process's machine: :meth:`share` them, or :meth:`join` a world.

    Behind its heap each file has a page with the run's secret, and a seat for each rank: the place of the file of the
    process that replaced the rank.
    """

    def __init__(self, rank: int, machine: Machine) -> None:
        self.rank = rank
        self._machine = machine
        self._span = machine.heap_span
        self._files: dict[int, int] = {}  # rank -> descriptor
        self._left_out: set[int] = set()  # ranks whose end is no error
        self._processes: list[tuple[int, int]] = []  # of each rank: process id, and the descriptor of its file there
        self._secret = b""
        _sweep()

    @classmethod
    def share(cls, bootstrap: Bootstrap, machine: Machine, hosts: Sequence[str], timeout: float) -> SharedHeaps:
        """Makes and maps the heaps. Collective, over all ranks; ``hosts``: the name of each rank's host. Raises
        BackendUnavailable or RankMismatchError, on every rank alike."""
        heaps = cls(bootstrap.rank, machine)
        secret = secrets.token_hex(8)
        said = bootstrap.all_gather((__version__, machine.heap_bytes, secret), timeout)
        require_same("the version of ep_lib", [version for version, _, _ in said])
        require_same("heap_bytes", [nbytes for _, nbytes, _ in said])
        heaps._secret = said[0][2].encode()
        here = [rank for rank, host in enumerate(hosts) if host == hosts[heaps.rank]]
        paths = {rank: SHARED_MEMORY / f"{_PREFIX}{said[0][2]}-{rank}" for rank in here}
        try:
            _together(bootstrap, timeout, lambda: heaps._make(paths[heaps.rank]))
            _together(bootstrap, timeout, lambda: heaps._map_all(paths))
            mine = (os.getpid(), heaps._files[heaps.rank])
            heaps._processes = [(int(pid), int(file)) for pid, file in bootstrap.all_gather(mine, timeout)]
        except BaseException:
            heaps.close()
            raise
        finally:
            for path in paths.values():  # also those of ranks that died before they could
                with contextlib.suppress(OSError):
                    path.unlink()
        return heaps

    @property
    def invitation(self) -> str:
        """The data that a process needs to replace a rank: see :meth:`join`."""
        return json.dumps(
            {
                "version": __version__,
                "heap_bytes": self._machine.heap_bytes,
                "secret": self._secret.decode(),
                "processes": self._processes,
            }
        )

    @classmethod
    def join(cls, invitation: Invitation, rank: int, machine: Machine) -> SharedHeaps:
        """Replaces ``rank``, whose process has ended. The others notice it in :meth:`take_back`.

        Raises BackendUnavailable, RankFailed if all other ranks have ended.
        """
        heaps = cls(rank, machine)
        heaps._secret, heaps._processes = invitation.secret, list(invitation.processes)
        try:
            for other, process in enumerate(invitation.processes):
                if (file := heaps._open(process)) is not None:
                    heaps._files[other] = file
            if not any(heaps._lives(other) for other in heaps._files):
                raise RankFailed(
                    f"none of the processes that invited rank {rank} lives any more: start all ranks again", rank=rank
                )
            if rank in heaps._files and heaps._lives(rank):
                raise BackendUnavailable(
                    f"rank {rank} is process {invitation.processes[rank][0]}, which lives: end it before another takes "
                    "its place"
                )
            if rank in heaps._files:
                os.close(heaps._files.pop(rank))
            heaps._make(None)
            heaps._processes[rank] = (os.getpid(), heaps._files[rank])
            for other, file in heaps._files.items():
                machine.map_heap(other, file)
        except OSError as error:
            heaps.close()
            raise BackendUnavailable(
                f"rank {rank} cannot share memory with the ranks that invited it: {error}; start it on the same host, "
                "by the same user, and in the same container"
            ) from error
        except BaseException:
            heaps.close()
            raise
        return heaps

    def take_seat(self) -> None:
        """Publishes the place of this process's file. The others write to it from now on."""
        seat = self._span + _SEATS + self.rank * _SEAT.size
        for other, file in self._files.items():
            if other != self.rank:
                os.pwrite(file, _SEAT.pack(*self._processes[self.rank], 0), seat)
                os.pwrite(file, struct.pack("<Q", time.time_ns()), seat + _SEAT.size - 8)  # the seat is complete now

    def take_back(self, ranks: Collection[int], timeout: float) -> None:
        """Map the heaps of ranks that were left out, once new processes have taken their places, and of the same
        processes if they live. Raises PeerTimeout, BackendUnavailable."""
        deadline = time.monotonic() + timeout
        for rank in sorted(set(ranks) - {self.rank}):
            while not self._is_seated(rank):
                if time.monotonic() > deadline:
                    raise PeerTimeout(
                        f"rank {self.rank} waited {timeout:g} s for a process in the place of rank {rank}, whose own "
                        "has ended: start one that calls ep_lib.rejoin(invitation, rank)",
                        rank=self.rank,
                        peer=rank,
                        phase="rejoin",
                    )
                time.sleep(_SEAT_SECONDS)
            self._left_out.discard(rank)

    def _is_seated(self, rank: int) -> bool:
        """Whether the rank's process lives, and is mapped."""
        for process in self._seats(rank):
            if process != self._processes[rank] and (file := self._open(process)) is not None:
                self._machine.map_heap(rank, file)
                if (old := self._files.pop(rank, None)) is not None:
                    os.close(old)
                self._files[rank], self._processes[rank] = file, process
        return rank in self._files and self._lives(rank)

    def _seats(self, rank: int) -> set[tuple[int, int]]:
        """The seats of this rank at all ranks: two processes that join at the same time do not know each other yet."""
        place = self._span + _SEATS + rank * _SEAT.size
        seats = [_SEAT.unpack(os.pread(file, _SEAT.size, place)) for file in self._files.values()]
        return {(pid, descriptor) for pid, descriptor, stamp in seats if stamp}

    def leave_out(self, ranks: Collection[int]) -> None:
        """The end of these ranks' processes is no error from now on."""
        self._left_out |= set(ranks)
        os.pwrite(self._files[self.rank], bytes(8), self._span + _NOTE)  # clears the old error

    def _open(self, process: tuple[int, int]) -> int | None:
        """Opens the unnamed file of a heap through the process that has it; None if it does not exist."""
        pid, descriptor = process
        try:
            file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if os.pread(file, len(self._secret), self._span) != self._secret:
            os.close(file)  # another program has reused that process id
            return None
        return file

    def _make(self, path: Path | None) -> None:
        """Makes this rank's file; ``path``: the name by which the others find it."""
        descriptor = os.open(SHARED_MEMORY, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        self._files[self.rank] = descriptor
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, self._span + _TAIL_BYTES)
        os.posix_fallocate(descriptor, 0, os.sysconf("SC_PAGESIZE"))  # the heap's first bytes are always in use
        os.posix_fallocate(descriptor, self._span, _TAIL_BYTES)
        os.pwrite(descriptor, self._secret, self._span)
        if path is None:
            return
        # It is locked before it can be seen. (With src_dir_fd, or Python would link the link.)
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)

    def _map_all(self, paths: dict[int, Path]) -> None:
        for rank, path in paths.items():
            if rank != self.rank:  # never reopen our own: closing any descriptor of a file releases its lock
                self._files[rank] = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                if os.fstat(self._files[rank]).st_uid != os.getuid():
                    raise OSError(errno.EPERM, "it belongs to another user", str(path))
            self._machine.map_heap(rank, self._files[rank])

    def reserve(self, begin: int, nbytes: int) -> None:
        """Reserves memory for these bytes of this rank's heap: if memory ran out later, a store would kill the process.

        Raises OutOfSymmetricMemory.
        """
        if nbytes == 0:
            return
        try:
            os.posix_fallocate(self._files[self.rank], begin, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            free = free_bytes()
            raise OutOfSymmetricMemory(
                f"{SHARED_MEMORY}, where the heaps of ranks on the emulator are, has {free} bytes left, and rank "
                f"{self.rank} wants {nbytes}: {MAKE_ROOM}, or take smaller arrays",
                requested=nbytes,
                available=free,
            ) from error

    def ended(self) -> list[int]:
        """The ranks whose processes have ended, without those that are left out."""
        return [rank for rank in sorted(self._files) if rank not in self._left_out and not self._lives(rank)]

    def ended_and_left_out(self) -> list[int]:
        """The ranks that are left out and whose processes have ended."""
        return [rank for rank in sorted(self._left_out & set(self._files)) if not self._lives(rank)]

    def leave_together(self, seconds: float) -> None:
        """Waits, at most ``timeout`` seconds, until every rank leaves, except ranks that are left out, ended or
        stopped."""
        os.pwrite(self._files[self.rank], struct.pack("<Q", 1), self._span + _LEAVES)
        deadline = time.monotonic() + seconds
        others = [rank for rank in self._files if rank not in (self.rank, *self._left_out)]
        while others and time.monotonic() < deadline:
            stopped = self.stopped()
            others = [r for r in others if not self._word(r, _LEAVES) and self._lives(r) and r not in stopped]
            time.sleep(_SEAT_SECONDS)

    def stopped(self) -> dict[int, int]:
        """The ranks whose processes are stopped, without those that are left out: their ids."""
        others = [rank for rank in sorted(self._files) if rank not in (self.rank, *self._left_out)]
        return {rank: self._processes[rank][0] for rank in others if self._is_stopped(self._processes[rank])}

    def lost(self) -> tuple[int, str] | None:
        """The rank that makes others fail, and its problem; None if all seem well.

        A rank that fails because of another one notes this before it ends (:meth:`blame`), so that later ranks do not
        blame it.
        """
        for rank, pid in self.stopped().items():
            return rank, f"is process {pid}, which is stopped (SIGSTOP, or a debugger)"
        ended = self.ended()
        blamed = {rank: self._note(rank) for rank in ended}
        for rank in ended:
            if not blamed[rank]:
                return rank, self._how_it_ended(rank)
        for rank, other in blamed.items():
            if other - 1 != self.rank:
                return other - 1, f"did not respond to rank {rank}, which has ended"
        return (ended[0], self._how_it_ended(ended[0])) if ended else None

    def _how_it_ended(self, rank: int) -> str:
        raised = os.pread(self._files[rank], _ERROR_BYTES, self._span + _ERROR).rstrip(b"\0")
        return f"has ended with {raised.decode(errors='replace')}" if raised else ENDED

    def abandon(self, error: BaseException | None) -> None:
        """Ends this process's rank with this error. For the others it has ended, although the process may still wait
        for them (MPI_Finalize)."""
        if (file := self._files.get(self.rank)) is not None:
            if error is not None:
                text = "".join(traceback.format_exception_only(error)).strip().encode()
                os.pwrite(file, text[:_ERROR_BYTES], self._span + _ERROR)
            fcntl.lockf(file, fcntl.LOCK_UN)

    def blame(self, rank: int) -> None:
        """Notes that this rank fails because of ``rank``."""
        if not self._note(self.rank):
            os.pwrite(self._files[self.rank], struct.pack("<Q", rank + 1), self._span + _NOTE)

    def _note(self, rank: int) -> int:
        """1 + the rank that this one blamed, or 0."""
        return self._word(rank, _NOTE)

    def _word(self, rank: int, offset: int) -> int:
        number: int = struct.unpack("<Q", os.pread(self._files[rank], 8, self._span + offset))[0]
        return number

    def _is_stopped(self, process: tuple[int, int]) -> bool:
        if (file := self._open(process)) is None:
            return False
        os.close(file)
        with contextlib.suppress(OSError):
            return Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        return False

    def _lives(self, rank: int) -> bool:
        """Whether the process with this rank's file lives: it holds a lock."""
        if rank == self.rank and self._processes[rank][0] == os.getpid():
            return True
        try:
            fcntl.lockf(self._files[rank], fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock, which others may hold too
        except OSError:
            return True
        fcntl.lockf(self._files[rank], fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Closes the files. Mappings stay as long as the machine."""
        while self._files:
            os.close(self._files.popitem()[1])


def _together(bootstrap: Bootstrap, timeout: float, step: Callable[[], None]) -> None:
    """Runs a step on every rank; if it fails on one, it fails on all."""
    failure = None
    try:
        step()
    except OSError as error:
        failure = f"{error.filename or SHARED_MEMORY}: {error.strerror}"
        if error.errno == errno.ENOSPC:
            failure += f"; {MAKE_ROOM}"
    for rank, text in enumerate(bootstrap.all_gather(failure, timeout)):
        if text is not None:
            raise BackendUnavailable(
                f"rank {rank} cannot share its memory with the other ranks: {text}. Ranks on the emulator need a "
                f"{SHARED_MEMORY} that they can write (`df {SHARED_MEMORY}`); in a container, all in the same one"
            )


def _sweep() -> None:
    """Removes files of this user whose owner was killed before all ranks had mapped them."""
    for path in SHARED_MEMORY.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)

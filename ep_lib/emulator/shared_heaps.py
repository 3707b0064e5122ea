"""The symmetric heaps of ranks that are processes of one host: POSIX shared memory, each rank's a file in /dev/shm.

A file has a name only until every rank has mapped it, so that nothing stays behind however the ranks end. Its owner
locks it and never unlocks it: a rank that can take the lock knows that the owner's process has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib.bootstrap.base import Bootstrap
from ep_lib.emulator.machine import HEAP_SPREAD, Machine
from ep_lib.errors import BackendUnavailable, OutOfSymmetricMemory, RankMismatchError
from ep_lib.version import __version__

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = f"ep_lib-{os.getuid()}-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SharedHeaps:
    """The heaps of all ranks, mapped into this process's machine. Making it is collective.

    Raises BackendUnavailable or RankMismatchError, on every rank alike.
    """

    def __init__(self, bootstrap: Bootstrap, machine: Machine, timeout: float) -> None:
        self.rank = bootstrap.rank
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._span = machine.heap_bytes * HEAP_SPREAD
        self._files: dict[int, int] = {}  # rank -> descriptor
        _sweep()
        host = f"{socket.gethostname()} {_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ''}"
        said = bootstrap.all_gather((__version__, machine.heap_bytes, host, secrets.token_hex(8)), timeout)
        for what, position in (("the version of ep_lib", 0), ("heap_bytes", 1)):
            _require_same(what, [each[position] for each in said])
        hosts = [each[2] for each in said]
        if len(set(hosts)) > 1:
            other = next(rank for rank, host in enumerate(hosts) if host != hosts[0])
            raise BackendUnavailable(
                f"rank 0 is on host {hosts[0].split()[0]} and rank {other} on {hosts[other].split()[0]}; ranks on the "
                f"emulator share memory, so start all of them on one host"
            )
        paths = [SHARED_MEMORY / f"{_PREFIX}{said[0][3]}-{rank}" for rank in range(len(said))]
        try:
            self._together(lambda: self._make(paths[self.rank]))
            self._together(lambda: self._map(paths, machine))
        except BaseException:
            self.close()
            raise
        finally:
            for path in paths:  # also those of ranks that died before they could
                with contextlib.suppress(OSError):
                    path.unlink()

    def _together(self, step: Callable[[], None]) -> None:
        """One step on every rank; if it fails on one, it fails on all."""
        failure = None
        try:
            step()
        except OSError as error:
            failure = f"{error.filename or SHARED_MEMORY}: {error.strerror}"
        for rank, text in enumerate(self._bootstrap.all_gather(failure, self._timeout)):
            if text is not None:
                raise BackendUnavailable(
                    f"rank {rank} cannot share its memory with the other ranks: {text}. Ranks on the emulator need a "
                    f"{SHARED_MEMORY} that they can write (`df {SHARED_MEMORY}`); in a container, all in the same one"
                )

    def _make(self, path: Path) -> None:
        descriptor = os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        self._files[self.rank] = descriptor
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, self._span)
        os.posix_fallocate(descriptor, 0, os.sysconf("SC_PAGESIZE"))  # the heap's first bytes are in use from now on
        # It is locked before it can be seen. (With src_dir_fd, or Python would link the link.)
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)

    def _map(self, paths: list[Path], machine: Machine) -> None:
        for rank, path in enumerate(paths):
            if rank != self.rank:  # never our own again: closing any descriptor of a file gives up its lock
                self._files[rank] = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                if os.fstat(self._files[rank]).st_uid != os.getuid():
                    raise OSError(errno.EPERM, "it belongs to another user", str(path))
            machine.map_heap(rank, self._files[rank])

    def reserve(self, begin: int, nbytes: int) -> None:
        """Takes memory for these bytes of this rank's heap: later, without any left, a store would end the process.

        Raises OutOfSymmetricMemory.
        """
        if nbytes == 0:
            return
        try:
            os.posix_fallocate(self._files[self.rank], begin, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            status = os.statvfs(SHARED_MEMORY)
            free = status.f_bavail * status.f_frsize
            raise OutOfSymmetricMemory(
                f"{SHARED_MEMORY}, where the heaps of ranks on the emulator are, has {free} bytes left, and rank "
                f"{self.rank} wants {nbytes}: remove what you do not need there, make it larger (docker run "
                f"--shm-size=1g, mount -o remount,size=1g {SHARED_MEMORY}), or take smaller arrays",
                requested=nbytes,
                available=free,
            ) from error

    def ended(self) -> list[int]:
        """The ranks whose processes have ended."""
        found = []
        for rank, descriptor in sorted(self._files.items()):
            if rank == self.rank:
                continue
            with contextlib.suppress(OSError):  # its owner lives
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_UN)
                found.append(rank)
        return found

    def close(self) -> None:
        """What is mapped stays until the machine goes."""
        while self._files:
            os.close(self._files.popitem()[1])


def _require_same(what: str, values: list[Any]) -> None:
    if len(set(values)) > 1:
        listing = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise RankMismatchError(f"{what} must be the same on all ranks; got {listing}")


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

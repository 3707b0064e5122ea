"""Private locks and shared memory for multiprocessing, in a process that must not write to /dev/shm.

That folder contains other processes' memory, so walls close it. Here a lock is a pipe, with a byte for each time that
it can still be acquired; memory is a file in a folder of the process's own. Forked children inherit both.
"""

from __future__ import annotations

import fcntl
import importlib
import multiprocessing.heap
import multiprocessing.synchronize
import os
import select
import struct
import termios
import threading
import time
from pathlib import Path


class SemLock:
    """Replaces ``_multiprocessing.SemLock``, on which :mod:`multiprocessing.synchronize` builds its locks."""

    SEM_VALUE_MAX = 4096  # bytes that any pipe holds
    _RECURSIVE = 0  # multiprocessing.synchronize.RECURSIVE_MUTEX
    handle, name = 0, None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if not 0 <= value <= self.SEM_VALUE_MAX:
            raise ValueError(f"a semaphore begins with 0 to {self.SEM_VALUE_MAX} here, got {value}")
        self.kind, self.maxvalue = kind, maxvalue
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.write(self._write, bytes(value))
        self._held, self._owner = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not (self.kind == self._RECURSIVE and self._is_mine()):
            try:
                os.read(self._read, 1)
                break
            except BlockingIOError:
                left = None if end is None else end - time.monotonic()
                if not block or (left is not None and left <= 0):
                    return False
                select.select([self._read], [], [], left)
        self._held, self._owner = self._held + 1, threading.get_ident()
        return True

    def release(self) -> None:
        if self.kind == self._RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._held -= 1
        os.write(self._write, b"\0")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._read, termios.FIONREAD, bytes(4)))[0])

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0


def keep_in(folder: Path) -> None:
    """Makes locks and shared memory of this process's multiprocessing private, with files in ``folder``."""
    ours, shared = (importlib.import_module(name) for name in ("_multiprocessing", "_posixshmem"))

    def shm_open(path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(folder / path.strip("/"), flags | os.O_CLOEXEC, mode)

    for module, name, own in (
        (ours, "SemLock", SemLock),
        (multiprocessing.synchronize, "SEM_VALUE_MAX", SemLock.SEM_VALUE_MAX),
        (multiprocessing.heap.Arena, "_dir_candidates", [str(folder)]),
        (shared, "shm_open", shm_open),
        (shared, "shm_unlink", lambda path: (folder / path.strip("/")).unlink()),
    ):
        setattr(module, name, own)

"""A child process with limits and walls, so that a submission harms neither the machine nor other grades.

Time, memory, number of processes, file sizes and output are limited. The child and all its processes end when grading
ends. Points never depend on the child's claims, only on arrays that the parent compares; for Python pieces, on
observations of the grader's functions in the child, while the piece runs in another process
(:mod:`ep_lib.workshop.grader.process.guest`). The submission can read the system, Python, this library without the
solution and the hidden tests, and its own files; it can write into its own folder and compile cache; it makes no
connection and signals no outside process (:mod:`ep_lib.workshop.grader.process.walls`; ``walls.missing()`` names walls
that a machine cannot enforce).

Walls in a shared kernel are weaker than a virtual machine: a bug in Linux itself opens them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from ep_lib.errors import EpError
from ep_lib.processes import OwnTime, TookTooLong, descendants
from ep_lib.workshop.grader.process.zygote import Child, Start, zygote
from ep_lib.workshop.grader.scenario import FRAME, REQUEST_BYTES, frame_sizes

_POLL_S = 0.02
_WATCH_S = 0.05  # between counts of memory and processes, at least
_WATCH_SHARE = 0.05  # of this process's time, at most, for these counts, which read all of /proc
_END_S = 5.0  # the longest wait for a killed process that hangs in the kernel
_AT_START = ("LD_LIBRARY_PATH",)  # read by the system's loader only when a program starts
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PIPE_BYTES = 1 << 20  # of output, so that few reads are enough
_BLOCK = 512  # bytes: the unit of st_blocks
_DEEPEST = 30  # nested folders


@dataclass(frozen=True)
class Limits:
    """Limits of one submission; the defaults suit the emulator and leave g++ room to compile."""

    # Seconds of the child's own time, on a CPU or idle: a busy machine does not fail an answer.
    request_s: float = 5.5  # of one scenario
    check_s: float = 5.0  # added to a scenario of several schedules under the checker
    compile_s: float = 30.0  # of the first request, which compiles: 35 times the solutions' time, 10 times CUB's
    # For a Python piece with its imports, twice: installed modules are loaded when scenarios import it again.
    import_s: float = 20.0
    start_s: float = 3.0  # added to the first scenario of a child that had to be started again
    cpu_s: int = 120  # RLIMIT_CPU of each process
    resident_bytes: int = 2 << 30  # of all processes together, watched by the parent
    data_bytes: int = 16 << 30  # RLIMIT_DATA: address space; the emulator reserves more than it touches
    file_bytes: int = 256 << 20  # RLIMIT_FSIZE
    processes: int = 32  # of this submission, the compiler's included, watched by the parent
    threads: int = 256  # of all of them
    total_s: float = 75.0  # of all scenarios together: each task may have one that never ends
    written_bytes: int = 512 << 20  # at a time, in its folders or in removed files that it holds open
    files: int = 20_000  # in its folders
    output_bytes: int = 64 * 1024  # of standard output and error to keep; later output is dropped


Walls = Mapping[Literal["readable", "writable", "listable"], Iterable[Path]]  # as for walls.confine


class ChildFailed(EpError):
    """The child exceeded a limit, ended, or sent an invalid answer. The message is for the learner."""


class ChildTookTooLong(ChildFailed):
    """The child used its time, part of it waiting."""


class ChildUsedItsTime(ChildFailed):
    """The child used its time computing: on a less busy machine it would do the same."""


class ChildKilled(ChildFailed):
    """Another process killed the child, perhaps the system for lack of memory."""


class Stopped(EpError):
    """:func:`stop_all` ended the child: there is no result for the submission."""


stopping = threading.Event()  # see stop_all


@contextlib.contextmanager
def stop_all() -> Iterator[None]:
    """Within this context, every sandbox of this process ends its child and raises Stopped, in any thread."""
    stopping.set()
    try:
        yield
    finally:
        stopping.clear()


class Sandbox:
    """One child process, started on first use and again after it has ended; use it as a context manager.

    ``modules``: modules that the zygote imports beside the library, before its first child. ``given``: folders with
    headers that are given to learners. ``guests``: whether Python pieces get processes of their own.
    """

    def __init__(
        self,
        mine: Path,
        limits: Limits,
        work: Path,
        environment: Mapping[str, str],
        open_to_it: Walls | None = None,
        modules: Sequence[str] = (),
        given: Sequence[Path] = (),
        *,
        guests: bool = False,
    ) -> None:
        self._mine = mine
        self._given, self._guests = tuple(given), guests
        self._limits = limits
        self._work = work
        self._environment = dict(environment)
        self._open_to_it = open_to_it or {}
        self._modules = tuple(modules)
        self._child: Child | None = None
        self._stdin_fd = self._output_fd = self._control_fd = self._reply_fd = -1
        self._next_watch = 0.0
        self._spent_s = 0.0  # of Limits.total_s
        self._idle_s = 0.0  # of these, idle
        self.import_cpu_s = 0.0  # of the last request that was no scenario: it imports Python pieces
        self._pids: list[int] = []  # the supervisor and its descendants at the last check
        self.output = b""  # the child's output, bounded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def running(self) -> bool:
        return self._child is not None

    def ask(self, request: Mapping[str, Any], *, reply_bytes: int, seconds: float) -> tuple[bytes, bytes]:
        """Sends a request; returns header and body of the reply.

        Raises ChildFailed or BadReply, and ends the child, if no reply comes.
        """
        left = self._limits.total_s - self._spent_s
        if left <= 0:
            kind = ChildTookTooLong if self._idle_s > self._spent_s / 2 else ChildUsedItsTime
            raise kind(self._all_used())
        if self._child is None:
            self._start()
        data = pickle.dumps({**request, "quiet": len(self.output) >= self._limits.output_bytes})
        is_scenario = "run" in request
        may_take = min(seconds, left) if is_scenario else seconds
        try:
            return self._exchange(REQUEST_BYTES.pack(len(data)) + data, reply_bytes, may_take, is_counted=is_scenario)
        except BaseException as error:  # KeyboardInterrupt too: leave nothing behind
            self.end()
            if isinstance(error, (ChildTookTooLong, ChildUsedItsTime)) and may_take < seconds:
                raise type(error)(self._all_used()) from None  # the limit of one scenario was not reached
            raise

    def _all_used(self) -> str:
        return (
            f"it has used the {self._limits.total_s:g} s that all of its tests have together (a piece in Python is "
            "imported anew for each of them)"
        )

    def end(self) -> None:
        """Ends the child and all its processes, even if these changed their session, parent or environment."""
        if self._child is None:
            return
        child, self._child = self._child, None
        os.close(self._control_fd)  # the supervisor kills everything below it, and ends
        self._control_fd = -1
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:  # a process below it hangs in the kernel
            child.kill()
            child.wait()
        self._close()

    def _start(self) -> None:
        stdin, self._stdin_fd = os.pipe()
        self._output_fd, output = os.pipe()
        control, self._control_fd = os.pipe()
        self._reply_fd, reply = os.pipe()
        first = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **{name: self._environment[name] for name in _AT_START if name in self._environment},
        }
        own = {**first, "HOME": str(self._work), "TMPDIR": str(self._work), **self._environment}
        code = f"nursery = child.begin(settings, control, reply); {self._program()}"
        start = Start(code, self._settings(), own, str(self._work))
        try:
            self._child = zygote(first, self._modules).start(start, (stdin, output, control, reply))
        except BaseException:
            self._close()
            raise
        finally:
            for fd in (stdin, output, control, reply):
                os.close(fd)
        for fd in (self._reply_fd, self._stdin_fd, self._output_fd):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # a user's pipes have a total limit; the default size is enough
            fcntl.fcntl(self._output_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def _close(self) -> None:
        for fd in (self._stdin_fd, self._output_fd, self._control_fd, self._reply_fd):
            if fd >= 0:
                os.close(fd)
        self._stdin_fd = self._output_fd = self._control_fd = self._reply_fd = -1

    def _settings(self) -> dict[str, Any]:
        limits = self._limits
        return {
            "limits": {
                "cpu_s": limits.cpu_s,
                "data_bytes": limits.data_bytes,
                "file_bytes": limits.file_bytes,
                "processes": _user_processes() + 8 * limits.processes,
            },
            "guests": self._guests,
            "walls": {key: [str(path) for path in paths] for key, paths in self._open_to_it.items()},
        }

    def _program(self) -> str:
        """The code that the child runs within its limits."""
        mine, given = f"Path({str(self._mine)!r})", f"[Path(each) for each in {list(map(str, self._given))!r}]"
        serve = f"child.serve(sys.stdin.buffer, reply, {mine}, {given}, nursery, settings['walls'])"
        return f"from pathlib import Path; {serve}"

    def _exchange(self, request: bytes, reply_bytes: int, seconds: float, *, is_counted: bool) -> tuple[bytes, bytes]:
        assert self._child is not None
        self._pids = [self._child.pid, *descendants(self._child.pid)]
        own = OwnTime(lambda: self._pids)
        try:
            return self._converse(request, reply_bytes, seconds, own)
        finally:
            own.look()
            if is_counted:
                self._spent_s += own.cpu + own.idle
                self._idle_s += own.idle
            else:
                self.import_cpu_s = own.cpu

    def _converse(self, request: bytes, reply_bytes: int, seconds: float, own: OwnTime) -> tuple[bytes, bytes]:
        child = self._child
        assert child is not None
        to_send = memoryview(request)
        reply = bytearray()
        wanted = FRAME.size
        header = -1
        readable = [self._reply_fd, self._output_fd]
        while True:
            if stopping.is_set():
                raise Stopped("the grading was stopped")
            if time.monotonic() >= self._next_watch:  # also across requests, which are short
                began = time.thread_time()
                self._watch()
                took = time.thread_time() - began
                try:
                    own.require(cpu_s=seconds, idle_s=seconds)
                except TookTooLong:
                    kind = ChildUsedItsTime if own.cpu > seconds else ChildTookTooLong
                    raise kind(
                        f"it did not end within {seconds:g} s and was stopped: is there an endless loop?"
                    ) from None
                self._next_watch = time.monotonic() + max(_WATCH_S, took / _WATCH_SHARE)
            writable = [self._stdin_fd] if to_send else []
            ready, can_write, _ = select.select(readable, writable, [], _POLL_S)
            if can_write:
                try:
                    to_send = to_send[os.write(self._stdin_fd, to_send[:65536]) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    to_send = memoryview(b"")
            if self._output_fd in ready and not self._collect_output():
                readable.remove(self._output_fd)
            if self._reply_fd in ready:
                chunk = os.read(self._reply_fd, min(1 << 20, wanted - len(reply)))
                if not chunk:
                    raise self._ended()
                reply += chunk
            elif child.poll() is not None and not ready:
                raise self._ended()
            if len(reply) == wanted and header < 0:
                header, body = frame_sizes(bytes(reply), reply_bytes)
                wanted += header + body
            if len(reply) == wanted and header >= 0:
                text = bytes(reply[FRAME.size :])
                return text[:header], text[header:]

    def _collect_output(self) -> bool:
        """Reads what the child prints and keeps the first bytes; returns False at the end of the output."""
        try:
            chunk = os.read(self._output_fd, _PIPE_BYTES)
        except BlockingIOError:
            return True
        self.output += chunk[: max(0, self._limits.output_bytes - len(self.output))]
        return bool(chunk)

    def _ended(self) -> ChildFailed:
        assert self._child is not None
        try:
            code = self._child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return ChildFailed("it closed the grader's pipe")
        if code == -signal.SIGXCPU:
            return ChildFailed(f"it used more than {self._limits.cpu_s} s of CPU time")
        if code == -signal.SIGKILL:
            return ChildKilled(
                "it was ended by signal SIGKILL: it used too much CPU time, or the machine had no memory"
            )
        if code < 0:
            return ChildFailed(f"it was ended by signal {signal.Signals(-code).name}")
        return ChildFailed(f"it ended the whole process with exit code {code} instead of returning")

    def _watch(self) -> None:
        """Checks the resources of the child and its descendants. Raises ChildFailed if they use too much."""
        assert self._child is not None
        limits = self._limits
        self._pids = [self._child.pid, *descendants(self._child.pid)]
        if len(self._pids) - 1 > limits.processes:
            raise ChildFailed(f"it started more than {limits.processes} processes")
        resident = threads = 0
        for pid in self._pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
                threads += sum(1 for _ in os.scandir(f"/proc/{pid}/task"))
        if resident > limits.resident_bytes:
            raise ChildFailed(f"it used more than {limits.resident_bytes >> 20} MiB of memory")
        if threads > limits.threads:
            raise ChildFailed(f"it started more than {limits.threads} threads")
        files = {}
        for place in self._open_to_it.get("writable", ()):
            if place.is_dir():
                for entry in _entries(place):
                    files[entry.st_dev, entry.st_ino] = entry.st_blocks
                    if len(files) > limits.files:
                        raise ChildFailed(f"it made more than {limits.files} files")
        for pid in self._pids:
            files.update(_removed_files(pid))
        if sum(files.values()) * _BLOCK > limits.written_bytes:
            raise ChildFailed(f"it wrote more than {limits.written_bytes >> 20} MiB into files")


def _entries(folder: Path, depth: int = _DEEPEST) -> Iterator[os.stat_result]:
    """All files below a folder. Raises ChildFailed if one cannot be examined: it could have any size."""
    if depth == 0:
        raise ChildFailed(f"it made more than {_DEEPEST} folders in each other")
    try:
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from _entries(Path(entry.path), depth - 1)
    except FileNotFoundError:
        return
    except PermissionError:
        raise ChildFailed("it made a folder that cannot be opened") from None


def _removed_files(pid: int) -> dict[tuple[int, int], int]:
    """The blocks of removed files that a process holds open."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    found[status.st_dev, status.st_ino] = status.st_blocks
    return found


def _user_processes() -> int:
    """The number of this user's threads: RLIMIT_NPROC counts all of them, not only the child's."""
    count, uid = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    count += sum(1 for _ in Path(entry.path, "task").iterdir())
    return count

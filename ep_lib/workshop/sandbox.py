"""A child process with limits, so that a submission cannot take the whole class down with it.

It protects the machine and the grades from mistakes. Time, memory, number of processes, file sizes and output are
limited. The child and everything it started end when grading ends, also processes that left its process group. Points
never depend on what the child claims, only on arrays that the parent compares.

It is **not a security boundary**. The learner's C++ runs with the rights of the user who grades: it can read that
user's files, among them the source of the hidden tests, and use the network. Grade submissions of strangers in a
container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ep_lib
from ep_lib.errors import EpError
from ep_lib.processes import Guard, OwnTime, TookTooLong, tagged
from ep_lib.workshop.child import REQUEST_BYTES
from ep_lib.workshop.scenario import FRAME, frame_sizes

_NONCE = "EP_LIB_GRADE_RUN"  # environment variable by which escaped processes are found
_POLL_S = 0.02
_WATCH_S = 0.05  # between counts of memory and processes, at least
_WATCH_SHARE = 0.05  # of this process's time, at most, for these counts: they read all that is in /proc
_CLEAN_PASSES = 3
_END_S = 5.0  # do not wait longer for a killed process that hangs in the kernel
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """Limits of one submission; the defaults suit the emulator and leave g++ room to compile."""

    # Seconds of the child's own time: of CPU, or doing nothing. A busy machine makes no answer wrong.
    request_s: float = 5.5  # of one scenario
    check_s: float = 5.0  # added to a scenario of several schedules under the checker
    compile_s: float = 300.0  # of the first request, which compiles
    start_s: float = 10.0  # added to the first scenario of a child that had to be started again
    cpu_s: int = 120  # RLIMIT_CPU of each process
    resident_bytes: int = 2 << 30  # of all processes together, watched by the parent
    data_bytes: int = 16 << 30  # RLIMIT_DATA: address space; the emulator reserves more than it touches
    file_bytes: int = 256 << 20  # RLIMIT_FSIZE
    processes: int = 32  # of this submission, the compiler's included, watched by the parent
    output_bytes: int = 64 * 1024  # of standard output and error that are kept


class ChildFailed(EpError):
    """The child broke a limit, ended, or sent something that is no answer. The message is for the learner."""


class Sandbox:
    """One child process, started on first use and again after it has ended; use it as a context manager."""

    def __init__(self, mine: Path, limits: Limits, work: Path, environment: Mapping[str, str]) -> None:
        self._mine = mine
        self._limits = limits
        self._work = work
        self._environment = dict(environment)
        self._tag = secrets.token_hex(16)
        self._child: subprocess.Popen[bytes] | None = None
        self._reply_fd = -1
        self._guard: Guard | None = None
        self._next_watch = 0.0
        self.output = b""  # what the child printed, bounded

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def running(self) -> bool:
        return self._child is not None

    def ask(self, request: Mapping[str, Any], *, reply_bytes: int, seconds: float) -> tuple[bytes, bytes]:
        """Sends a request; returns header and body of the reply.

        Raises ChildFailed or BadReply, and ends the child, if no reply comes.
        """
        if self._child is None:
            self._start()
        data = pickle.dumps(dict(request))
        try:
            return self._exchange(REQUEST_BYTES.pack(len(data)) + data, reply_bytes, seconds)
        except BaseException:  # KeyboardInterrupt too: leave nothing behind
            self.end()
            raise

    def end(self) -> None:
        """Ends the child, its process group, and processes that escaped from it."""
        if self._child is None:
            return
        child, self._child = self._child, None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
        if self._guard is not None:
            self._guard.done()
            self._guard = None
        deadline = time.monotonic() + _END_S
        clean_passes = 0  # during an exec, a process has no environment to find it by
        while clean_passes < _CLEAN_PASSES and time.monotonic() < deadline:
            escaped = tagged(f"{_NONCE}={self._tag}")
            clean_passes = 0 if escaped else clean_passes + 1
            for pid in escaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        os.close(self._reply_fd)
        self._reply_fd = -1

    def _start(self) -> None:
        limits = self._limits
        ours = _user_processes()
        own = {
            "cpu_s": limits.cpu_s,
            "data_bytes": limits.data_bytes,
            "file_bytes": limits.file_bytes,
            "processes": ours + 8 * limits.processes,
        }
        read_end, write_end = os.pipe()
        package_root = str(Path(ep_lib.__file__).resolve().parent.parent)
        code = (
            f"import sys; sys.path.insert(0, {package_root!r}); from ep_lib.workshop import child; "
            f"child.limit_self(**{own!r}); from pathlib import Path; "
            f"child.serve(sys.stdin.buffer, {write_end}, Path({str(self._mine)!r}))"
        )
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._work),
            "TMPDIR": str(self._work),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **self._environment,
            _NONCE: self._tag,
        }
        try:
            self._guard = Guard()
            self._child = self._guard.start(
                [sys.executable, "-I", "-B", "-X", "faulthandler", "-c", code],
                has_stdin=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                cwd=self._work,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            if self._guard is not None:
                self._guard.done()
                self._guard = None
            raise
        finally:
            os.close(write_end)
        self._reply_fd = read_end
        assert self._child.stdin is not None and self._child.stdout is not None
        for fd in (read_end, self._child.stdin.fileno(), self._child.stdout.fileno()):
            os.set_blocking(fd, False)

    def _exchange(self, request: bytes, reply_bytes: int, seconds: float) -> tuple[bytes, bytes]:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        to_send = memoryview(request)
        reply = bytearray()
        wanted = FRAME.size
        header = -1
        readable: list[Any] = [self._reply_fd, child.stdout]
        pids = [child.pid]
        own = OwnTime(lambda: pids)
        while True:
            if time.monotonic() >= self._next_watch:  # also across requests, which are short
                began = time.thread_time()
                pids = self._watch()
                took = time.thread_time() - began
                try:
                    own.require(cpu_s=seconds, idle_s=seconds)
                except TookTooLong:
                    raise ChildFailed(
                        f"it did not end within {seconds:g} s and was stopped: is there an endless loop?"
                    ) from None
                self._next_watch = time.monotonic() + max(_WATCH_S, took / _WATCH_SHARE)
            writable = [child.stdin] if to_send else []
            ready, can_write, _ = select.select(readable, writable, [], _POLL_S)
            if can_write:
                try:
                    to_send = to_send[os.write(child.stdin.fileno(), to_send[:65536]) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    to_send = memoryview(b"")
            if child.stdout in ready and not self._collect_output():
                readable.remove(child.stdout)
            if self._reply_fd in ready:
                chunk = os.read(self._reply_fd, min(1 << 20, wanted - len(reply)))
                if not chunk:
                    raise ChildFailed(self._how_it_ended())
                reply += chunk
            elif child.poll() is not None and not ready:
                raise ChildFailed(self._how_it_ended())
            if len(reply) == wanted and header < 0:
                header, body = frame_sizes(bytes(reply), reply_bytes)
                wanted += header + body
            if len(reply) == wanted and header >= 0:
                text = bytes(reply[FRAME.size :])
                return text[:header], text[header:]

    def _collect_output(self) -> bool:
        """Reads what the child prints and keeps the first bytes; returns False at the end of the output."""
        assert self._child is not None and self._child.stdout is not None
        try:
            chunk = os.read(self._child.stdout.fileno(), 65536)
        except BlockingIOError:
            return True
        self.output += chunk[: max(0, self._limits.output_bytes - len(self.output))]
        return bool(chunk)

    def _how_it_ended(self) -> str:
        assert self._child is not None
        try:
            code = self._child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return "it closed the grader's pipe"
        if code == -signal.SIGXCPU:
            return f"it used more than {self._limits.cpu_s} s of CPU time"
        if code < 0:
            return f"it was ended by signal {signal.Signals(-code).name}"
        return f"it ended the whole process with exit code {code} instead of returning"

    def _watch(self) -> list[int]:
        """The child and its descendants. Raises ChildFailed if they are too many or use too much memory."""
        pids = tagged(f"{_NONCE}={self._tag}")
        if len(pids) > self._limits.processes:
            raise ChildFailed(f"it started more than {self._limits.processes} processes")
        resident = 0
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        if resident > self._limits.resident_bytes:
            raise ChildFailed(f"it used more than {self._limits.resident_bytes >> 20} MiB of memory")
        return pids


def _user_processes() -> int:
    """How many threads this user runs: RLIMIT_NPROC counts all of them, not only the child's."""
    count, uid = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    count += sum(1 for _ in Path(entry.path, "task").iterdir())
    return count

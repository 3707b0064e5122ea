"""A process that has imported the modules of the grader's children, and forks a child for each request.

Starting Python and importing NumPy and this library takes longer than most scenarios, and torch takes seconds. The
zygote does that once; a child then starts in milliseconds. The zygote runs no code of a submission and has no hidden
tests: it imports the library, waits on a socket, and forks. The child sets up limits and walls
(:func:`ep_lib.workshop.grader.process.child.begin`) before any code of the submission runs; a submission cannot affect
the next one's process. The zygote ends when the grader's end of the socket is closed for any reason.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ep_lib
from ep_lib.processes import read_exactly

_SIZE = struct.Struct("<Q")  # of the pickle that follows
_NUMBER = struct.Struct("<q")  # a reply: a child's id, or how it ended
_FDS = 4  # descriptors of a child: standard input, standard output and error, control, reply
_ROOT = str(Path(ep_lib.__file__).resolve().parent.parent)
MODULES = (  # the last three: otherwise imported by the first run on the emulator, or the first launch of a piece
    "ep_lib.workshop.grader.process.child",
    "ep_lib.workshop.classroom.handed_in",
    "numpy.ma",
    "ep_lib.backends.emulator",
    "ep_lib.transports.emulated.heap",
)


@dataclass(frozen=True)
class Start:
    """The start of a child: its whole environment, its folder, and Python code that may use the module ``child``,
    ``settings``, ``control`` and ``reply``."""

    code: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: str


class Child:
    """A process that a zygote has forked, with the methods of subprocess.Popen that the sandbox needs."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self._zygote = zygote
        self._ended = os.pidfd_open(pid)  # only the zygote waits for it, so the id is still its own
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None as long as it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("the grader's child", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self._returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self._returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self._returncode = self._zygote.wait_for(self.pid)
            os.close(self._ended)
        return self._returncode


def limits_of(pid: int) -> dict[int, tuple[int, int]]:
    """The limits of a process; 0: this one. Other processes of the same user can change them."""
    names = ("CPU", "DATA", "FSIZE", "AS", "STACK", "NPROC", "NOFILE", "MEMLOCK", "CORE", "RSS")
    return {which: resource.prlimit(pid, which) for which in (getattr(resource, f"RLIMIT_{name}") for name in names)}


class Zygote:
    """The grader's end. ``environment``: the process's environment. ``modules``: further modules that it imports."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._made_as = os.getpid(), dict(environment)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path.insert(0, {_ROOT!r}); from ep_lib.workshop.grader.process import child, zygote\n"
            f"start, control, reply = zygote.serve({theirs.fileno()}, {[*MODULES, *modules]!r})\n"
            "exec(start.code, {**globals(), 'settings': start.settings})"  # in a forked child
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-X", "faulthandler", "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env=dict(environment),
                start_new_session=True,  # an interrupt is for the grader
            )
        self._limits = limits_of(self._process.pid)

    def start(self, start: Start, fds: Sequence[int]) -> Child:
        """Starts a child. ``fds``: its standard input, its standard output and error, control, reply; it gets
        copies."""
        return Child(self, self._ask(pickle.dumps(start), fds))

    def wait_for(self, pid: int) -> int:
        """The exit status of an ended child. Unknown if the zygote is gone."""
        try:
            return self._ask(pickle.dumps(pid), ())
        except OSError:
            return -signal.SIGKILL

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether it is alive, belongs to this process, and has this environment and its initial limits."""
        if self._made_as != (os.getpid(), environment) or self._process.poll() is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            return limits_of(self._process.pid) == self._limits
        return False

    def end(self) -> None:
        """Ends the zygote; its children continue. Does nothing in a process forked from its creator."""
        if self._made_as[0] == os.getpid():
            self._socket.close()
            self._process.kill()
            self._process.wait()

    def _ask(self, request: bytes, fds: Sequence[int]) -> int:
        with self._lock:
            try:
                socket.send_fds(self._socket, [_SIZE.pack(len(request))], fds)
                self._socket.sendall(request)
                reply = read_exactly(self._socket.fileno(), _NUMBER.size)
            except BaseException:  # KeyboardInterrupt too: the next reply would be the one to this request
                self.end()
                raise
        if not reply:
            raise ConnectionResetError("the process that starts the grader's children has ended")
        return int(_NUMBER.unpack(reply)[0])


_kept: dict[tuple[str, ...], Zygote] = {}  # by modules
_keeping = threading.Lock()


def zygote(environment: Mapping[str, str], modules: Sequence[str] = ()) -> Zygote:
    """The zygote with this environment and these modules: the last one if it still serves, else a new one."""
    with _keeping:
        kept = _kept.get(tuple(modules))
        if kept is None or not kept.serves(environment):
            if kept is not None:
                atexit.unregister(kept.end)
                kept.end()
            kept = _kept[tuple(modules)] = Zygote(environment, modules)
            atexit.register(kept.end)
        return kept


# ---- the zygote's own process ----------------------------------------------------------------------------------------
def serve(fd: int, modules: Sequence[str]) -> tuple[Start, int, int]:
    """Imports, and forks at each request. Returns in the children only: the request, ``control``, ``reply``."""
    for module in modules:
        with contextlib.suppress(ImportError):  # code that needs a missing one reports it
            importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy all memory
    grader = socket.socket(fileno=fd)
    while True:
        try:
            begin, fds, _, _ = socket.recv_fds(grader, _SIZE.size, _FDS)
            text = read_exactly(fd, _SIZE.unpack(begin)[0]) if len(begin) == _SIZE.size else b""
        except ConnectionError:
            text = b""
        if not text:
            os._exit(0)
        request = pickle.loads(text)
        if isinstance(request, int):
            reply = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        else:
            reply = os.fork()
            if reply == 0:
                grader.close()
                return request, *_become(request, fds)
            for each in fds:
                os.close(each)
        try:
            grader.sendall(_NUMBER.pack(reply))
        except ConnectionError:  # the grader was killed while this forked or waited
            os._exit(0)


def _become(start: Start, fds: Sequence[int]) -> tuple[int, int]:
    """Sets up a new child: its own session, streams, environment and folder."""
    stdin, output, control, reply = fds
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(stdin)
    os.close(output)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    return control, reply

"""Child processes that end with this one, even if it is killed, and whose limits count only their own time.

A limit in wall time turns a right program on a crowded machine into an error. Limits here count the CPU time of a
process and its children, and separately the time in which all of them are idle.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import resource
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ep_lib.errors import BackendUnavailable

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_LOOK_S = 1.0  # between two checks of running processes, at most
_STOP_S = 0.2  # the same in threads that can be stopped
_END_S = 10.0  # for killed processes to end
_END_LOOK_S = 0.005  # between two checks of them
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTED = 19  # in the result of _stat()
_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)

# Reads process groups, a line each, until "done", or until its pipe ends because all writers have ended, perhaps
# killed.
_GUARD = """
trap '' INT TERM HUP
groups=
while read -r word; do
    [ "$word" = done ] && exit
    groups="$groups -$word"
done
[ -z "$groups" ] || kill -s KILL -- $groups
[ $# = 0 ] || rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }
"""

# A child's first steps: it sends its group to the guard, whose pipe is its standard input until then. A parent killed
# before that leaves no orphan: the pipe ends only after the child has sent it.
_CHILD = 'echo $$ >&0; stdin=$1; shift; exec "$@" <"$stdin"'


class TookTooLong(Exception):
    """A command was ended at its time limit; ``text`` says which limit."""


class Stopped(Exception):
    """A command was ended because its thread must stop: see :func:`stop_by`."""


_of_this_thread = threading.local()


def stop_by(event: threading.Event) -> None:
    """Makes :func:`run` in this thread raise Stopped once ``event`` is set. For ``initializer=`` of threads: an
    interrupt reaches only the main thread, which would wait for the others."""
    _of_this_thread.stop = event


@contextlib.contextmanager
def stoppable_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of ``count`` threads. An error or an interrupt in the block ends the commands that they :func:`run`;
    waiting work never begins."""
    from concurrent.futures import ThreadPoolExecutor  # imported here: most processes have no pool

    stop = threading.Event()
    with ThreadPoolExecutor(count, initializer=stop_by, initargs=(stop,)) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def stopping_by(event: threading.Event) -> Iterator[None]:
    """Like :func:`stop_by` within the context; restores the thread's earlier event at the end."""
    before: threading.Event | None = getattr(_of_this_thread, "stop", None)
    stop_by(event)
    try:
        yield
    finally:
        _of_this_thread.stop = before


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


def run(
    command: Sequence[str],
    *,
    cpu_s: float,
    idle_s: float,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a command to its end, in a process group of its own that ends with this process.

    Raises TookTooLong after ``cpu_s`` seconds of CPU time, or ``idle_s`` idle seconds, OSError if it cannot be started,
    and Stopped in threads that must stop.
    """
    stop: threading.Event | None = getattr(_of_this_thread, "stop", None)
    look_s = min(_LOOK_S if stop is None else _STOP_S, idle_s / 4, cpu_s / 4)
    given = None if stdin is None else stdin.encode()
    with guarded() as guard:
        process = guard.start(
            command,
            has_stdin=stdin is not None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            process_group=0,
        )
        try:
            own = OwnTime(lambda: [process.pid, *descendants(process.pid)])
            while True:
                try:
                    out, err = process.communicate(given, timeout=look_s)
                    return Ended(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
                except subprocess.TimeoutExpired:
                    given = None  # it is already sent
                    if stop is not None and stop.is_set():
                        raise Stopped from None
                    own.require(cpu_s=cpu_s, idle_s=idle_s)
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kills the rest of the process group that ``process`` leads, and waits until it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all have already ended
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _wait_for_group(process.pid)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _wait_for_group(group: int) -> None:
    """Waits until no process of a killed group runs any more. On a busy machine that takes some time after the signal.

    A process that hangs in the system, in a file system that does not answer, is abandoned after _END_S.
    """
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        if not any(is_alive(pid) for pid in in_group(group)):
            return  # the rest are zombies: ended, but not reaped
        time.sleep(_END_LOOK_S)


def python(*words: str) -> list[str]:
    """The command of a child that runs this Python and this ep_lib, independent of the current folder.

    ``words``: "-m" and a module with its arguments, or "-c" and code. A child leaves no bytecode beside the sources.
    """
    if words[0] == "-c":
        code, rest = words[1], words[2:]
    else:
        code, rest = f"import runpy; runpy.run_module({words[1]!r}, run_name='__main__', alter_sys=True)", words[2:]
    first = f"import sys; sys.path.append({_PACKAGE_ROOT!r}); "
    return [sys.executable, "-P", "-B", "-c", first + code, *rest]


# ---- children that end with this process ---------------------------------------------------------------------------
class Guard:
    """The writing end of the pipe to a shell that cleans up if this process is killed."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "ep_lib-guard", *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin

    def start(
        self, command: Sequence[str], *, has_stdin: bool = False, pass_fds: Sequence[int] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a process that ends with this one, with all its process group.

        ``has_stdin``: a pipe to its standard input, else it reads nothing. ``options`` are subprocess.Popen's and must
        make a new group or session. Raises OSError if the command cannot be started.
        """
        _require_program(command[0])
        stdin, ours, theirs = os.devnull, -1, -1
        if has_stdin:
            theirs, ours = os.pipe()
            stdin = f"/dev/fd/{theirs}"
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _CHILD, "ep_lib-child", stdin, *command],
                stdin=self._pipe,
                pass_fds=(*pass_fds, theirs) if has_stdin else pass_fds,
                **options,
            )
        except BaseException:
            if has_stdin:
                os.close(ours)
            raise
        finally:
            if has_stdin:
                os.close(theirs)
        if has_stdin:
            child.stdin = os.fdopen(ours, "wb")
        return child

    def done(self) -> None:
        """Tells the shell that everything has been cleaned up."""
        with contextlib.suppress(BrokenPipeError):  # the shell was killed
            self._pipe.write(b"done\n")
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._shell.wait()


def _require_program(word: str) -> None:
    """Raises subprocess's error for a missing program: the shell that starts a command only prints it on its standard
    error."""
    is_there = Path(word).is_file() if os.sep in word else shutil.which(word) is not None
    if not is_there:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), word)
    if os.sep in word and not os.access(word, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), word)


@contextlib.contextmanager
def guarded(*folders: Path) -> Iterator[Guard]:
    """If this process is killed within the context, removes ``folders`` and kills the guard's children."""
    guard = Guard(folders)
    try:
        yield guard
    finally:
        guard.done()


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A private folder that is removed at the end, also if this process is killed."""
    folder = (parent or Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(8)}"
    with guarded(folder):  # before making it: this process may be killed right after that
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def home_folder() -> Path | None:
    """This user's home; None for one without HOME and without an entry in the user database, as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def private_folder() -> Path:
    """A private folder of this user in the system's temporary folder.

    Raises BackendUnavailable if it cannot be made, or if others could have made it or can read it.
    """
    place = Path(tempfile.gettempdir()) / f"ep_lib-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
    except OSError as error:
        raise BackendUnavailable(f"{place} cannot be made: {error.strerror}; set TMPDIR to another folder") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BackendUnavailable(f"{place} must be a directory that only you can read; remove it, or set TMPDIR")
    return place


# ---- processes' own time -------------------------------------------------------------------------------------------
class OwnTime:
    """The time of processes since the construction: ``cpu`` seconds, and ``idle`` seconds, in which none is ready to
    run.

    Time in which one is ready but has no CPU is the machine's fault, and does not count.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._then = time.monotonic()
        self._before, _ = _usage(pids())
        self.cpu = 0.0
        self.idle = 0.0

    def look(self) -> None:
        """Updates ``cpu`` and ``idle``."""
        now = time.monotonic()
        used, wants = _usage(self._pids())
        gained = max(0.0, used - self._before)
        self.cpu += gained
        if not wants:
            self.idle += max(0.0, now - self._then - gained)
        self._then, self._before = now, used

    def require(self, *, cpu_s: float, idle_s: float) -> None:
        """Raises TookTooLong if a limit has passed."""
        self.look()
        if self.cpu > cpu_s:
            raise TookTooLong(f"used {cpu_s:g} s of CPU time")
        if self.idle > idle_s:
            raise TookTooLong(f"did nothing for {idle_s:g} s")


def _usage(pids: Iterable[int]) -> tuple[float, bool]:
    """CPU seconds of processes and the children they have waited for; and whether one of their threads is ready to
    run."""
    ticks, wants = 0, False
    for pid in pids:
        found = _stat(Path(f"/proc/{pid}/stat"))
        if found is None:
            continue
        ticks += sum(map(int, found[11:15]))
        with contextlib.suppress(OSError):
            for task in os.scandir(f"/proc/{pid}/task"):
                thread = _stat(Path(task.path, "stat"))
                wants = wants or (thread is not None and thread[0] == "R")
    return ticks / _TICKS, wants


def _stat(file: Path) -> list[str] | None:
    """The fields of a stat file of /proc behind the name, which may contain any character: state, ppid, pgrp, ..."""
    try:
        return file.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


class Identity(NamedTuple):
    """A process, distinguished from a later one with the same id. ``place``: the boot of the host, and the namespace of
    its ids."""

    place: str
    pid: int
    started: str  # in ticks since the boot

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The identity of a process of this host. If /proc does not give it, the place is unique."""
        fields = _stat(Path(f"/proc/{pid}/stat"))
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            place = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
        except OSError:
            place = secrets.token_hex(8)
        return cls(place, pid, "" if fields is None else fields[_STARTED])


def is_stopped(process: Identity) -> bool:
    """Whether the process is stopped, by a signal or a debugger; only for a process of this place."""
    fields = _stat(Path(f"/proc/{process.pid}/stat"))
    return fields is not None and fields[_STARTED] == process.started and fields[0] in "Tt"


def has_ended(process: Identity) -> bool:
    """Whether the process has ended, even if its parent has not reaped it; only for a process of this place."""
    fields = _stat(Path(f"/proc/{process.pid}/stat"))
    return fields is None or fields[_STARTED] != process.started or fields[0] in "ZX"


def is_alive(pid: int) -> bool:
    """Whether the process runs or waits, and is not a zombie."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return fields is not None and fields[0] not in "ZX"


def in_group(group: int) -> list[int]:
    """The processes of a process group."""
    wanted = str(group)
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    stats = ((pid, _stat(Path(f"/proc/{pid}/stat"))) for pid in pids)
    return [pid for pid, stat in stats if stat is not None and stat[2] == wanted]


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on; zombies included."""
    found, wanted = [], [pid]
    while wanted:
        parent = wanted.pop()
        children: list[int] = []
        with contextlib.suppress(OSError):  # it ended meanwhile; then its children have another parent
            for task in os.scandir(f"/proc/{parent}/task"):
                children += map(int, _bytes_of(f"{task.path}/children").split())
        found += children
        wanted += children
    return found


def end_like(status: int) -> NoReturn:
    """Ends this process as another one has ended, by the status that ``waitpid`` gave: its exit code, or its signal."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # it would report a fault of this process
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes. Raises BrokenPipeError if the other end of a pipe is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_exactly(fd: int, count: int) -> bytes:
    """Reads exactly so many bytes; b"" if the other end was closed before."""
    found = bytearray()
    while len(found) < count:
        part = os.read(fd, count - len(found))
        if not part:
            return b""
        found += part
    return bytes(found)


def _bytes_of(path: str) -> bytes:
    """A file's content by system calls: for hundreds of small files, file objects would dominate the time."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)

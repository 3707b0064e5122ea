"""The process in which a learner's Python runs: forked before the test's data come, with walls of its own.

The worker (:mod:`ep_lib.workshop.runner`) gets a request only after its guest is there. So nothing of the request is in
the guest's memory but the arguments of the one call that it makes, which stand in no frame below the piece, and the
pipe to the grader is not open in it. What a test must not lose to the piece, what a stream still holds and the record
of what happened, is kept by the worker, in an object of the class ``Kept`` of the test's program; the guest asks it by
``ask(method, ...)``, and what it was told cannot be taken back.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import re
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

from ep_lib.errors import KernelCompileError
from ep_lib.workshop import seal, walls
from ep_lib.workshop.pieces import load, place_in
from ep_lib.workshop.scenario import MAX_HEADER_BYTES, RETURNED_NOTHING, Call

_LENGTH = struct.Struct("<I")
MAX_MESSAGE = 4000  # characters of an exception that travel to the parent
_MUCH = 1 << 30  # bytes
_TOO_LARGE = "what your functions return or keep takes more memory than a process may have: return what was asked for"
_MOST_TOLD = 1 << 20  # bytes of one message from the guest
_LOOK_S = 0.5  # of CPU time, between looks at how long a call takes
_ENDLESS_S = 4.5  # of CPU time in one call: less than its request may take, so that the line can be told
_ENDLESS_AGAIN_S = 1.0  # where an earlier call of this submission was ended in the same function
ENDLESS = "ChildUsedItsTime"  # of the sandbox, which tells no line
_TASK = re.compile(r"# (?P<ended>end of )?TASK (?P<task>\d+)")  # around what a learner writes: generate.py
Walls = Mapping[str, Iterable[str]]


class _Endless(BaseException):
    """A function of the piece has used its time; ``location`` names the function. No ``except Exception`` takes it."""

    def __init__(self, message: str, location: str) -> None:
        super().__init__(message)
        self.location = location


class Guest:
    """A fork of this process, with its modules, that has imported ``piece`` and waits for a call. The worker's end.

    ``before`` is for :mod:`ep_lib.workshop.seal`. ``around``: the walls of the worker,
    which are built once more around the guest, so that it does not reach the worker either; None: it has none.
    ``shut``: descriptors that are not its business.
    """

    def __init__(
        self,
        mine: Path,
        piece: str,
        before: Sequence[seal.Noted],
        around: Walls | None = None,
        shut: Iterable[int] = (),
    ) -> None:
        self.piece = piece
        from_guest, told = os.pipe()
        orders, to_guest = os.pipe()
        time_left = signal.getitimer(signal.ITIMER_PROF)  # of CPU, if the worker has a limit: a fork has none
        self._pid = os.fork()
        if self._pid == 0:
            signal.setitimer(signal.ITIMER_PROF, *time_left)
            os.close(from_guest)
            os.close(to_guest)
            _live(mine, piece, before, around, shut, orders, told)
        os.close(orders)
        os.close(told)
        self._from, self._to = from_guest, to_guest

    def imported(self) -> dict[str, Any]:
        """Waits until the piece is imported: {"failure": None}, or why it is not; and "looks", at what an instructor
        should look."""
        return self._told()

    def call(self, program: ModuleType, call: Call, kept: Any, endless: Iterable[str] = ()) -> dict[str, Any]:
        """What it gave: {"seen": ..., "failure": None} or {"failure": ...}, and "looks" again. ``kept`` answers what
        the guest asks; ``endless`` names functions of the piece in which earlier calls were ended."""
        order = list(endless), program.__name__, call.function, dict(call.arguments), kept is not None
        _write(self._to, pickle.dumps(order))
        while True:
            told = self._told()
            if "ask" not in told:
                return told
            name, *given = told["ask"]
            _write(self._to, pickle.dumps(_answer(kept, name, given)))

    def end(self) -> None:
        """Ends it. What it has started, the supervisor ends."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._from)
        os.close(self._to)

    def _told(self) -> dict[str, Any]:
        data = _read(self._from, _MOST_TOLD)
        if not data:
            os.close(self._from)  # one that says too much ends by this
            _end_as(os.waitpid(self._pid, 0)[1])
        told: dict[str, Any] = json.loads(data)
        return told


def _end_as(status: int) -> NoReturn:
    """The guest is gone: this process ends as it did, and the grader says how."""
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _answer(kept: Any, name: str, given: list[Any]) -> tuple[str, Any]:
    """("value", what a method of ``kept`` returns) or ("error", its words)."""
    if name.startswith("_") or name == "seen":
        return "error", f"nobody keeps {name}"
    try:
        return "value", getattr(kept, name)(*given)
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        return "error", str(error)


_asking = threading.Lock()


def say_in_a_line(ignored: sys.UnraisableHookArgs) -> None:
    """For ``sys.unraisablehook``: a line, where Python's own shows a traceback."""
    kind = ignored.exc_type.__name__
    print(
        f"{ignored.err_msg or 'Exception ignored in'} {ignored.object!r}: {kind}: {ignored.exc_value}", file=sys.stderr
    )


# ---- the guest's own process ----------------------------------------------------------------------------------------
def _live(
    mine: Path,
    piece: str,
    before: Sequence[seal.Noted],
    around: Walls | None,
    shut: Iterable[int],
    orders: int,
    told: int,
) -> NoReturn:
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in shut:
            os.dup2(nothing, fd)
        if around is not None:
            walls.confine_further(**around)
        _serve(mine, piece, before, orders, told)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(mine: Path, piece: str, before: Sequence[seal.Noted], orders: int, told: int) -> None:
    looks = seal.put_on(before)
    module: ModuleType | None = None

    def imported() -> dict[str, Any]:
        nonlocal module
        module = load(mine / piece)
        return {"failure": None}

    def called() -> dict[str, Any]:
        # _made() takes the arguments out of the order: a piece that finds this frame finds nothing in it.
        order = _order(orders)
        with _ended_in_time(mine, order.pop(0)):
            return {"failure": None, "seen": _made(module, order, partial(_ask, orders, told))}

    for step in (imported, called):
        said = json.dumps({**_outcome(mine, step, module), "looks": looks()})
        sys.stdout.flush()
        _write(told, said.encode())


def _made(piece: ModuleType | None, order: list[Any], ask: Callable[..., Any]) -> Any:
    program, function = sys.modules[order.pop(0)], order.pop(0)
    given = {"ask": ask} if order.pop() else {}
    seen = getattr(program, function)(piece, **given, **order.pop())
    return seen if len(json.dumps(seen)) <= MAX_HEADER_BYTES // 2 else None  # more than any right answer gives


def _outcome(mine: Path, step: Callable[[], dict[str, Any]], piece: ModuleType | None = None) -> dict[str, Any]:
    try:
        return step()
    except _Endless as endless:
        return {"failure": {"kind": ENDLESS, "message": str(endless), "location": endless.location}}
    except MemoryError as error:
        failure = failure_of(mine, error)
        if not failure["message"] and _has_memory():  # then it was what the piece gave to the function around it
            failure = {"kind": "ValueError", "message": _TOO_LARGE, "location": ""}
        return {"failure": failure}
    except Exception as error:  # noqa: BLE001 - the grader judges whatever went wrong
        return {"failure": failure_of(mine, error, piece)}


@contextlib.contextmanager
def _ended_in_time(mine: Path, known: Sequence[str]) -> Iterator[None]:
    """Ends a call of the piece that computes for too long, with the function and the line where it is.

    Where ranks are threads of their own, no line is found from here: the sandbox ends those, as all else."""
    used = 0.0

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal used
        used += _LOOK_S
        while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(mine):
            frame = frame.f_back
        if frame is None:
            return
        name = frame.f_code.co_qualname
        if used >= (_ENDLESS_AGAIN_S if name in known else _ENDLESS_S):
            lines = Path(frame.f_code.co_filename).read_text("utf-8").splitlines()[: frame.f_lineno]
            marks = [mark for mark in map(_TASK.search, lines) if mark]
            of = f", of task {marks[-1]['task']}," if marks and not marks[-1]["ended"] else ""
            where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}: {lines[-1].strip()}"
            raise _Endless(f"{name}(){of} does not end: it still ran after {used:g} s, in {where}", name)

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _has_memory() -> bool:
    """Whether this machine has as much to give as no function around a piece takes for itself."""
    try:
        mmap.mmap(-1, _MUCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def failure_of(mine: Path, error: Exception, piece: ModuleType | None = None) -> dict[str, str]:
    """An exception as it travels to the grader."""
    if piece is not None and (names := _returned_nothing(mine, error, piece)):
        return {"kind": TypeError.__name__, "message": f"{names} {RETURNED_NOTHING}", "location": ""}
    text = f"{error}{place_in(mine, error)}"
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE].rpartition("\n")[0]  # no half lines
    if isinstance(error, KernelCompileError):
        location = f"{error.file}:{error.line}" if error.file else ""
    else:
        location = str(getattr(error, "location", ""))
    return {"kind": type(error).__name__, "message": text, "location": location}


def _returned_nothing(mine: Path, error: Exception, piece: ModuleType) -> str:
    """ "route()", if the test around ``piece`` failed because that function returned None; else ""."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "NoneType" not in str(error) or any(Path(each.f_code.co_filename).is_relative_to(mine) for each in frames):
        return ""
    for frame in reversed(frames):
        own = [name for name in frame.f_code.co_names if isinstance(vars(piece).get(name), FunctionType)]
        if own:  # what it returned stands in a variable, or was used where it was called
            is_none = frame is frames[-1] or any(value is None for value in frame.f_locals.values())
            return " or ".join(f"{name}()" for name in own) if is_none else ""
    return ""


def _order(orders: int) -> list[Any]:
    data = _read(orders)
    if not data:
        os._exit(0)  # the worker is gone
    return list(pickle.loads(data))


def _ask(orders: int, told: int, name: str, *given: Any) -> Any:
    """What the worker's ``Kept`` says. Raises RuntimeError with its words."""
    with _asking:  # ranks are threads
        _write(told, json.dumps({"ask": [name, *given]}).encode())
        kind, value = _order(orders)
    if kind == "error":
        raise RuntimeError(value)
    return value


# ---- both ------------------------------------------------------------------------------------------------------------
def _write(fd: int, data: bytes) -> None:
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, most: int | None = None) -> bytes:
    """One message; b"" if the other end is closed, or announces more than ``most`` bytes."""
    prefix = _read_exactly(fd, _LENGTH.size)
    length = _LENGTH.unpack(prefix)[0] if prefix else 0
    return b"" if most is not None and length > most else _read_exactly(fd, length)


def _read_exactly(fd: int, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = os.read(fd, count - len(found))
        if not part:
            return b""
        found += part
    return bytes(found)

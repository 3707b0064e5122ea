"""The process that runs only a learner's Python: a small server that executes calls.

It is a fork of a process that was forked from the worker (:mod:`ep_lib.workshop.grader.process.runner`) before any test
data arrived, and it has walls of its own. So its memory contains only the arguments of calls, and the pipe to the
grader is not open in it. :mod:`ep_lib.workshop.grader.process.far` is the other end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import mmap
import os
import pickle
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import numpy as np

from ep_lib.backends.base import MAX_SHARED_BYTES
from ep_lib.backends.emulator import NoStreams
from ep_lib.bootstrap import wire
from ep_lib.errors import KernelCompileError, KernelLaunchError
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import is_array, like
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.grader.pieces import load, place_in
from ep_lib.workshop.grader.process import crossing, own_memory, walls

_MUCH = 1 << 30  # bytes
_TOO_LARGE = "what your functions return or keep takes more memory than a process may have: return what was asked for"
_LOOK_S = 0.2  # of CPU time between checks of a call's duration
_ENDLESS_S = 4.5  # of CPU time in one test: less than the request's limit, so that the line can be reported
_ENDLESS_AGAIN_S = 1.0  # if an earlier call was ended in the same function
ENDLESS = "ChildUsedItsTime"  # the sandbox's failure, without a line
_TASK = re.compile(r"# (?P<ended>end of )?TASK (?P<task>\d+)")  # around what a learner writes: generate.py
_PID = struct.Struct("<q")
_IS_MODULE = re.compile(r"[A-Za-z_][\w.]{,99}").fullmatch
_MOST_MODULES = 500  # imported in advance
Walls = Mapping[str, Iterable[str]]


class _Endless(BaseException):
    """A function of the piece has used its time; ``location`` names the function. ``except Exception`` does not catch
    it."""

    def __init__(self, message: str, location: str) -> None:
        super().__init__(message)
        self.location = location


class Nursery:
    """A process that forks the processes of pieces. Make it before the walls are set up, :meth:`start` it before any
    test data arrives."""

    def __init__(self) -> None:
        self._ours, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_started = False

    def start(self, mine: Path, around: Walls | None, shut: Iterable[int]) -> None:
        """``mine``: the folder of the pieces. ``around``: this process's walls, which are set up again around each
        piece's process, so that it cannot reach this one; None: none. ``shut``: descriptors to close there. Does
        nothing if already started."""
        if self._is_started:
            return
        self._is_started = True
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (*shut, self._ours.fileno()):
                os.dup2(nothing, fd)
            _fork_at_each_request(self._its, mine, around)
        self._its.close()

    def new(self, piece: str, endless: Sequence[str], share: float, *, compiles: bool) -> tuple[int, int, int]:
        """Starts a process that imports ``piece``: returns its id, and the ends of the pipes from it and to it.
        ``endless``: functions of the piece in which earlier calls were ended. ``share``: its share of the total time.
        ``compiles``: whether it may compile; else it may write only into its own temporary folder."""
        from_guest, told = os.pipe()
        orders, to_guest = os.pipe()
        socket.send_fds(self._ours, [json.dumps([piece, list(endless), share, compiles]).encode()], [orders, told])
        os.close(orders)
        os.close(told)
        return self._reply(), from_guest, to_guest

    def wait(self, pid: int) -> int:
        """Waits until a process has ended, and returns its status."""
        self._ours.send(json.dumps(pid).encode())
        return self._reply()

    def know(self, modules: Iterable[str]) -> None:
        """Imports modules there for later processes, so that installed modules do not take a submission's time. Modules
        that are missing or fail to import are left out: a piece that needs one reports it."""
        # packages first: they load most modules
        names = sorted(filter(_IS_MODULE, modules), key=lambda name: name.count("."))
        self._ours.send(json.dumps(names[:_MOST_MODULES]).encode())
        self._reply()

    def _reply(self) -> int:
        data = self._ours.recv(_PID.size)
        if not data:
            os._exit(1)  # it was killed: the grader reports it for this process
        return int(_PID.unpack(data)[0])


def say_in_a_line(ignored: sys.UnraisableHookArgs) -> None:
    """``sys.unraisablehook``: prints a line for the learner."""
    kind = ignored.exc_type.__name__
    print(
        f"{ignored.err_msg or 'Exception ignored in'} {ignored.object!r}: {kind}: {ignored.exc_value}", file=sys.stderr
    )


def failure_of(mine: Path, error: Exception) -> dict[str, str]:
    """An exception as a message for the grader."""
    text = crossing.cut(f"{error}{getattr(error, 'place', '') or place_in(mine, error)}")
    if isinstance(error, KernelCompileError):
        location = f"{error.file}:{error.line}" if getattr(error, "file", None) else ""
    else:
        location = str(getattr(error, "location", ""))
    return {"kind": type(error).__name__, "message": text, "location": location}


# ---- the process that forks ------------------------------------------------------------------------------------------
def _fork_at_each_request(worker: socket.socket, mine: Path, around: Walls | None) -> NoReturn:
    own: dict[int, str] = {}  # the folders of processes behind walls
    while True:
        data, fds, _, _ = socket.recv_fds(worker, 1 << 16, 2)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if isinstance(request, int):
            pid, status = os.waitpid(request, 0)
            if pid in own:
                shutil.rmtree(own.pop(pid), ignore_errors=True)  # the rest is deleted with the grader's folder
            worker.send(_PID.pack(status))
            continue
        if not fds:
            for name in request:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            gc.freeze()  # a collection in a fork would copy all memory
            worker.send(_PID.pack(0))
            continue
        piece, endless, share, compiles = request
        folder = "" if around is None or compiles else tempfile.mkdtemp(dir=Path.cwd())
        pid = os.fork()
        if pid == 0:
            worker.close()
            _live(partial(_serve, mine, piece, endless, share, *fds), around, folder)
        os.setpgid(pid, pid)  # its children end with it
        if folder:
            own[pid] = folder
        worker.send(_PID.pack(pid))
        for fd in fds:
            os.close(fd)


# ---- the process of a piece ------------------------------------------------------------------------------------------
def _live(serve: Callable[[], None], around: Walls | None, folder: str) -> NoReturn:
    """``folder``: the only folder that it may write into; "": all folders of the worker's."""
    code = 1
    try:
        if around is not None and not folder:
            walls.confine_further(**around)
        elif around is not None:
            # Not its parent: it contains other pieces' folders, which this piece must not read.
            readable = [*around["readable"], *(each for each in around["writable"] if Path(each) != Path.cwd())]
            os.chdir(folder)
            os.environ.update(HOME=folder, TMPDIR=folder)
            tempfile.tempdir = None  # an earlier import may have used it
            writable = [os.devnull, folder]
            walls.confine_further(readable=readable, writable=writable, listable=around.get("listable", ()))
            own_memory.keep_in(Path(folder))
        serve()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(mine: Path, piece: str, endless: Sequence[str], share: float, orders: int, told: int) -> None:
    worker = _Worker(mine, orders, told)
    worker.tell(lambda: worker.be_new(mine / piece))  # with a limit of its own
    with _ended_in_time(mine, endless, share, worker):
        while order := crossing.read(orders):
            worker.tell(partial(worker.obey, order))


class _Worker:
    """The piece's side of the connection to the worker."""

    def __init__(self, mine: Path, orders: int, told: int) -> None:
        self.cpu_s = 0.0  # used by the worker so far for the piece's calls
        self._first_s: float | None = None
        self._mine, self._orders, self._told = mine, orders, told
        self.be(None)
        self._changed = ""
        self._by_value = 0  # id() of a known object that the worker wants as a value
        self._asking = threading.Lock()  # a piece may have threads

    def be_new(self, piece: Path) -> list[str]:
        """Imports the piece; returns the modules that came with it."""
        before = set(sys.modules)
        self.be(load(piece))
        return [*sys.modules.keys() - before]

    def be(self, piece: ModuleType | None) -> None:
        """It has none of the worker's objects any more, and the worker none of its."""
        self._objects: list[Any] = [piece]  # known to the worker by their numbers
        self._known: dict[int, int] = {}  # their numbers, by id()
        self._lent: dict[int, Any] = {}  # placeholders for the worker's objects
        self._numbers: dict[int, int] = {}  # of these, and of arrays that kernels use, by id()
        self._arrays: dict[int, tuple[Any, bytes]] = {}  # their bytes, and the bytes that the worker knows
        self._adopted: list[Any] = []  # arrays
        self._lists: dict[int, list[Any]] = {}  # shared with the worker

    # ---- requests of the worker --------------------------------------------------------------------------------------
    def tell(self, step: Callable[[], Any]) -> None:
        """Runs a step, and sends its result."""
        try:
            self._changed, self._by_value = "", 0
            data = self._packed({"value": step(), "error": None, "changed": self._changed})
            if len(data) > crossing.MOST_TOLD:
                raise MemoryError
        except MemoryError as error:
            found = error if place_in(self._mine, error) or str(error) or not _has_memory() else ValueError(_TOO_LARGE)
            data = self._packed({"error": crossing.told_of(found, self._mine)})
        except _Endless as endless:
            more = {"location": endless.location}
            data = self._packed({"error": {"kinds": [ENDLESS], "text": str(endless), "more": more, "place": ""}})
        except SystemExit as end:
            said = SystemExit("it ends its process, instead of returning").with_traceback(end.__traceback__)
            data = self._packed({"error": crossing.told_of(said, self._mine)})
        except Exception as error:  # noqa: BLE001 - the grader judges any error
            data = self._packed({"error": crossing.told_of(error, self._mine)})
        sys.stdout.flush()
        crossing.write(self._told, data)

    def obey(self, data: bytes) -> Any:
        order = self._unpacked(data)
        start, what = self._objects[order["object"]], order["do"]
        if what == "anew":
            return self.be(load(Path(start.__file__)))
        if what == "set":
            setattr(start, order["path"], *order["given"])
            return None
        found = _at(start, order["path"])
        if what == "get":
            self._by_value = 0 if order["path"] else id(found)
            return found
        kept = [(name, each) for name, each in zip(order["unchanged"], order["given"], strict=False) if name != "_"]
        before = [pickle.dumps(each) for _, each in kept]
        returned = found(*order["given"], **order["named"])
        changed = (name for (name, each), was in zip(kept, before, strict=True) if pickle.dumps(each) != was)
        self._changed = next(changed, "")
        return returned if what == "call" or returned is None else _Itself(returned)

    # ---- requests of the piece ---------------------------------------------------------------------------------------
    def ask(self, number: int, name: str, what: str, *given: Any, **named: Any) -> Any:
        """Calls, reads or sets an open attribute of a worker's object. Raises its exceptions."""
        with self._asking:
            crossing.write(self._told, self._packed({"ask": [number, name, what, given, named]}))
            answer = self._unpacked(crossing.read(self._orders))
        if "error" in answer:
            raise crossing.error_of(answer["error"])
        return answer["value"]

    def adopt(self, number: int, array: np.ndarray[Any, Any]) -> None:
        """Shares this array with the worker."""
        flat = array.reshape(-1).view(np.uint8)
        self._arrays[number] = flat, flat.tobytes()
        self._numbers[id(array)] = number
        self._adopted.append(array)  # so that no other has its id

    def shares(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether it is in an array shared with the worker."""
        return self._place(array) is not None

    # ---- messages ----------------------------------------------------------------------------------------------------
    def _packed(self, told: Mapping[str, Any]) -> bytes:
        changes = []
        for number, (flat, known) in self._arrays.items():
            if (now := flat.tobytes()) != known:
                self._arrays[number] = flat, now
                changes.append((number, now))
        return wire.dumps({**told, "changes": changes}, self._plain)

    def _unpacked(self, data: bytes) -> dict[str, Any]:
        if not data:
            os._exit(0)  # the worker is gone
        order: dict[str, Any] = _Unpickler(data, self).load()
        for number, content in order["changes"]:
            if isinstance(content, list):
                self._lists.setdefault(number, [])[:] = content
            else:
                flat, _ = self._arrays[number]
                flat[:] = np.frombuffer(content, np.uint8)
                self._arrays[number] = flat, content
        self._first_s = order["cpu_s"] if self._first_s is None else self._first_s
        self.cpu_s = order["cpu_s"] - self._first_s
        return order

    def _plain(self, obj: Any) -> Any:
        if isinstance(obj, _Itself):
            return self._far(obj.object)
        if (number := self._numbers.get(id(obj))) is not None and self._lent.get(number) is obj:
            return ["lent", number]
        if id(obj) in self._known and id(obj) != self._by_value:
            return self._far(obj)
        if isinstance(obj, np.ndarray) and (place := self._place(obj)):
            return ["array", *place]
        if (value := crossing.value_of(obj)) is not None:
            return value
        is_plain = isinstance(obj, (*crossing.PLAIN, list, tuple, set, frozenset, dict))
        return None if is_plain else self._far(obj)

    def _far(self, obj: Any) -> list[Any]:
        number = self._known.setdefault(id(obj), len(self._objects))
        self._objects[number:] = self._objects[number:] or [obj]
        return ["far", number, repr(obj)[:80]]

    def _place(self, array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
        base: Any = array
        while isinstance(base, np.ndarray):
            number = self._numbers.get(id(base))
            if number is not None:
                at = array.ctypes.data - base.ctypes.data if array.size else 0
                kind = array.dtype.name if array.dtype.isbuiltin == 2 else array.dtype.str  # 2: a type of ml_dtypes
                return number, at, array.shape, array.strides, kind
            base = base.base
        return None

    def far_object(self, kind: str, number: int, *rest: Any) -> Any:
        """The placeholder for an object of the worker."""
        if kind == "far":
            return self._objects[number]
        if kind == "array":
            content, shape, strides, dtype = rest
            if number not in self._arrays:
                base = np.frombuffer(content, np.uint8).copy()
                self._arrays[number] = base, content
                self._numbers[id(base)] = number
            return np.ndarray(shape, dtype, self._arrays[number][0], 0, strides)
        if kind == "list":
            return self._lists.setdefault(number, *rest)
        if kind == "new":
            self._lent[number] = made = _MADE[rest[0]](partial(self.ask, number), self, *rest[1:])
            self._numbers[id(made)] = number
        return self._lent[number]


class _Itself:
    """An object that must not be sent as a copy."""

    def __init__(self, obj: Any) -> None:
        self.object = obj


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, worker: _Worker) -> None:
        super().__init__(io.BytesIO(data))
        self._worker = worker

    def persistent_load(self, told: Any) -> Any:
        return self._worker.far_object(*told)


def _at(start: Any, path: str) -> Any:
    """The object at a path: "known.append" of an object, "torch:autograd.grad" of a module."""
    module, _, names = path.rpartition(":")
    found = importlib.import_module(module) if module else start
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


# ---- placeholders for the worker's objects ---------------------------------------------------------------------------
Ask = Callable[..., Any]


def _function(ask: Ask, _: _Worker, name: str, *of_its_class: Any) -> Callable[..., Any]:
    def function(*given: Any, **named: Any) -> Any:
        return ask("", "call", *given, **named)

    function.__name__ = function.__qualname__ = name
    return function


def _object(
    ask: Ask, _: _Worker, name: str, methods: Sequence[str], values: Sequence[str], fixed: Mapping[str, Any]
) -> Any:
    def method(which: str) -> Callable[..., Any]:
        return lambda self, *given, **named: ask(which, "call", *given, **named)

    def value(which: str) -> property:
        return property(lambda self: ask(which, "get"), lambda self, new: ask(which, "set", new))

    kind = type(name, (), {**{each: method(each) for each in methods}, **{each: value(each) for each in values}})
    made = kind()
    vars(made).update(fixed)
    return made


class _Kernel(Kernel):
    """A kernel of the test, for launching."""

    def __init__(self, ask: Ask, worker: _Worker, *described: Any) -> None:
        vars(self).update(described[-1])

    def launch(
        self, rank: Any, grid: Any, block: Any, *args: object, shared_bytes: int = 0, uses: Sequence[object] = ()
    ) -> None:
        if not isinstance(rank, Rank):
            raise KernelLaunchError("the first argument is the rank that your function got: kernel.launch(rank, ...)")
        rank.launch(self, grid, block, args, shared_bytes, uses)

    def __repr__(self) -> str:
        return f"<the kernel {self.name} of the test>"


class _Rank(Rank):
    """A rank with the worker's memory and kernels."""

    streams = NoStreams()
    sm_count = None
    shared_bytes = MAX_SHARED_BYTES

    def __init__(
        self, ask: Ask, worker: _Worker, _: str, methods: Sequence[str], values: Sequence[str], fixed: Mapping[str, Any]
    ) -> None:
        self._ask, self._worker, self.xp = ask, worker, np
        vars(self).update(fixed)

    @property
    def is_closed(self) -> bool:
        """Always False: a piece is called while its test's world runs."""
        return False

    def launch(
        self,
        kernel: Kernel,
        grid: Any,
        block: Any,
        args: Sequence[Any],
        shared_bytes: int = 0,
        uses: Sequence[Any] = (),
    ) -> None:
        if not isinstance(kernel, _Kernel):
            raise KernelLaunchError(f"{kernel!r} is none of the kernels that your function got, and these are launched")
        self._ask("launch", "call", kernel, grid, block, list(map(self._shared, args)), shared_bytes)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shared(self, arg: Any) -> Any:
        """Shares a host's own array, which kernels on the emulator may use, with the worker; returns the argument."""
        if not is_array(arg) or self._worker.shares(arg := like("numpy", arg)):
            return arg
        owner = arg  # other arguments may be other parts of it
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if not owner.flags.c_contiguous:
            raise KernelLaunchError(f"an array of shape {arg.shape} is not contiguous: pass a contiguous copy")
        self._worker.adopt(self._ask("adopt", "call", owner), owner)
        return arg


def _asks(name: str) -> Callable[..., Any]:
    def method(self: _Rank, *given: Any, **named: Any) -> Any:
        return self._ask(name, "call", *given, **named)

    return method


# The other methods of a rank, which all need its world.
for _name, _found in list(vars(Rank).items()):
    if callable(_found) and not _name.startswith("_") and _name != "launch":
        setattr(_Rank, _name, _asks(_name))

_Kernel.__name__, _Rank.__name__ = Kernel.__name__, Rank.__name__  # for messages
_MADE: Mapping[str, Callable[..., Any]] = {"function": _function, "object": _object, "kernel": _Kernel, "rank": _Rank}


# ---- endless calls ---------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _ended_in_time(mine: Path, known: Sequence[str], share: float, worker: _Worker) -> Iterator[None]:
    """Ends a call of the piece that computes too long, and reports its function and line. The worker's computing for it
    counts as well."""
    began = time.process_time()

    def look(_: int, frame: FrameType | None) -> None:
        used = time.process_time() - began + worker.cpu_s
        while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(mine):
            frame = frame.f_back
        if frame is None:
            return
        name = frame.f_code.co_qualname
        if used >= share * (_ENDLESS_AGAIN_S if name in known else _ENDLESS_S):
            lines = Path(frame.f_code.co_filename).read_text("utf-8").splitlines()[: frame.f_lineno]
            marks = [mark for mark in map(_TASK.search, lines) if mark]
            of = f", of task {marks[-1]['task']}," if marks and not marks[-1]["ended"] else ""
            where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}: {lines[-1].strip()}"
            raise _Endless(f"{name}(){of} does not end: it still ran after {used:.2g} s, in {where}", name)

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _has_memory() -> bool:
    """Whether this machine has more memory than any function around a piece needs for itself."""
    try:
        mmap.mmap(-1, _MUCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True

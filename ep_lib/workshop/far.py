"""A learner's piece in Python, as the worker that plays the test's part has it: in a process of its own, behind a pipe.

    piece.call("frame", body)               what the function returned, as plain data
    cache = piece.make("RegistrationCache", register, deregister, 0)   an object that stays there: a Far
    cache.call("known.append", one)         paths go on from an object
    loss.get("requires_grad")               an attribute
    piece.make("torch:mul", weights, 1)     a function of a library, called there

What the piece is given it has as a copy, but for functions, and objects of classes that say what of them is ``OPEN``:
these stay here, and the piece calls, reads and writes what is open. ``FIXED`` is what never changes: it goes along. So
a piece's process has the arguments of its calls, and nothing else of a test.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import time
from collections.abc import Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from ep_lib.bootstrap import wire
from ep_lib.workshop import crossing
from ep_lib.workshop.crossing import GivenWasChanged
from ep_lib.workshop.guest import Nursery
from ep_lib.workshop.scenario import RETURNED_NOTHING

T = TypeVar("T")


class Far:
    """An object in a piece's process. ``shown``: what it shows itself as; untrusted, like all that comes from there."""

    def __init__(self, guest: Guest, number: int, shown: str = "") -> None:
        self._guest, self._number, self._shown = guest, number, shown

    def __repr__(self) -> str:
        return self._shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Far) and self._guest is other._guest and self._number == other._number

    def __hash__(self) -> int:
        return self._number

    def call(self, path: str, *given: Any, unchanged: str = "", may_be_none: bool = False, **named: Any) -> Any:
        """What a function returns. ``unchanged``: the names of the first arguments that are to stay as they are, "_"
        for one that need not.

        Raises what the function raises; GivenWasChanged; TypeError if it returns None, unless it may.
        """
        found = self._guest.ask(self._number, "call", path=path, given=given, named=named, unchanged=unchanged.split())
        return _something(path, found, may_be_none=may_be_none)

    def make(self, path: str, *given: Any, unchanged: str = "", may_be_none: bool = False, **named: Any) -> Far:
        """The object itself that a function returns. Arguments and errors as for :meth:`call`."""
        found: Far = self._guest.ask(
            self._number, "make", path=path, given=given, named=named, unchanged=unchanged.split()
        )
        return _something(path, found, may_be_none=may_be_none)

    def get(self, path: str = "") -> Any:
        """An attribute; without a path, the object's own value, where it is plain data."""
        return self._guest.ask(self._number, "get", path=path)

    def set(self, name: str, value: Any) -> None:
        self._guest.ask(self._number, "set", path=name, given=(value,))


def _something(path: str, found: T, *, may_be_none: bool) -> T:
    if found is None and not may_be_none:
        raise TypeError(f"{path.rpartition('.')[2]}() {RETURNED_NOTHING}")
    return found


class Guest(Far):
    """The piece itself, and its process. It has one caller at a time."""

    def __init__(self, nursery: Nursery, piece: str, endless: Sequence[str], share: float, *, compiles: bool) -> None:
        self._nursery = nursery
        self._pid, self._from, self._to = nursery.new(piece, endless, share, compiles=compiles)
        self._lent: list[Any] = []
        # Lists that change in the piece as they do here, and arrays of a rank that it has, too; each as it knows them.
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._mirror: list[tuple[NDArray[np.uint8], bytes]] = []
        super().__init__(self, 0, piece)

    def imported(self) -> list[str]:
        """Waits until the piece is imported, and returns the modules that this has brought, as the piece's process
        says. Raises what that raises."""
        return [str(name) for name in self._outcome() or ()]

    def anew(self) -> None:
        """Imports it once more: its variables are what they were at first, and it has nothing of this process."""
        self._forget()
        self.ask(0, "anew")

    def _forget(self) -> None:
        """Arrays keep the heap of a machine alive."""
        self._lent.clear()
        self._lists.clear()
        self._mirror.clear()

    def array(self, array: NDArray[Any]) -> _Array:
        """An argument that is an array which kernels use, and no copy: both sides see what becomes of it whenever one
        calls the other. No kernel runs in between."""
        plain = np.asarray(array)
        in_memory = plain.transpose(np.argsort([-stride for stride in plain.strides], kind="stable"))
        flat = in_memory.reshape(-1).view(np.uint8)
        for number, (before, known) in enumerate(self._mirror):
            if before.size == flat.size and before.ctypes.data == flat.ctypes.data:
                self._mirror[number] = flat, known  # of memory that was freed and given again, this one counts
                return _Array(number, plain)
        self._mirror.append((flat, flat.tobytes()))
        return _Array(len(self._mirror) - 1, plain)

    def share(self, shared: list[Any]) -> None:
        """From now on, wherever this list goes along, the piece has one that becomes what this one is."""
        self._lists.append((shared, shared[:]))

    def number_of(self, shared: list[Any]) -> int | None:
        """Of a list that changes there, too."""
        return next((number for number, (each, _) in enumerate(self._lists) if each is shared), None)

    def known(self, number: int) -> bytes:
        """What the piece knows of an array, or is about to know."""
        return self._mirror[number][1]

    def ask(self, number: int, what: str, **order: Any) -> Any:
        self._say({"object": number, "do": what, **order})
        return self._outcome()

    def end(self) -> None:
        """Ends its process, and what that has started in its group. Others the supervisor ends."""
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has gone to another group
            os.killpg(self._pid, signal.SIGKILL)
        self._nursery.wait(self._pid)
        os.close(self._from)
        os.close(self._to)
        self._forget()

    def _outcome(self) -> Any:
        while True:
            told = self._told()
            if "ask" in told:
                self._say(self._answer(*told["ask"]))
            elif told["error"] is not None:
                raise crossing.error_of(told["error"])
            elif told["changed"]:
                raise GivenWasChanged(
                    f"the call has changed `{told['changed']}`, which its caller still needs: work on a copy"
                )
            else:
                return told["value"]

    def _answer(self, number: int, name: str, what: str, given: Iterable[Any], named: dict[str, Any]) -> dict[str, Any]:
        lent = self._lent[number]
        try:
            if (name and name not in type(lent).OPEN) or (what == "set" and name in _methods(type(lent))):
                raise AttributeError(f"{name} is not open")
            if what == "set":
                setattr(lent, name, *given)
                return {"value": None}
            found = getattr(lent, name) if name else lent
            return {"value": found(*given, **named) if what == "call" else found}
        except Exception as error:  # noqa: BLE001 - the piece called: it gets what that raises
            return {"error": crossing.told_of(error)}

    # ---- messages ----------------------------------------------------------------------------------------------------
    def _say(self, order: dict[str, Any]) -> None:
        changes: list[tuple[int, bytes | list[Any]]] = []
        for number, (shared, before) in enumerate(self._lists):
            if shared != before:
                before[:] = shared
                changes.append((number, before))
        for number, (flat, known) in enumerate(self._mirror):
            if (now := flat.tobytes()) != known:
                self._mirror[number] = flat, now
                changes.append((number, now))
        data = io.BytesIO()
        _Pickler(data, self).dump({**order, "changes": changes, "cpu_s": time.process_time()})
        try:
            crossing.write(self._to, data.getvalue())
        except BrokenPipeError:
            self._end_as_it_did()

    def _told(self) -> dict[str, Any]:
        data = crossing.read(self._from, crossing.MOST_TOLD)
        if not data:
            self._end_as_it_did()
        told: dict[str, Any] = wire.loads(data, -1, self._object)
        for number, content in told["changes"]:
            flat, _ = self._mirror[number]
            flat[:] = np.frombuffer(content, np.uint8)
            self._mirror[number] = flat, content
        return told

    def _object(self, told: list[Any]) -> Any:
        kind, *rest = told
        if kind == "far":
            return Far(self, int(rest[0]), str(rest[1]))
        if kind == "lent":
            return self._lent[rest[0]]
        if kind == "array":
            number, at, shape, strides, name = rest
            if (dtype := np.dtype(name)).hasobject:
                raise ValueError(f"an array of {name} over numbers")
            return np.ndarray(shape, dtype, self._mirror[number][0], at, strides)
        return crossing.object_of(kind, *rest)

    def lend(self, obj: Any) -> tuple[Any, ...]:
        """What stands for an object of this process in a message to the piece."""
        for number, each in enumerate(self._lent):
            if each is obj:
                return "lent", number
        self._lent.append(obj)
        kind = type(obj)
        if isinstance(obj, (FunctionType, MethodType)):
            return "new", len(self._lent) - 1, "function", obj.__name__, (), (), {}
        fixed = {name: getattr(obj, name) for name in getattr(kind, "FIXED", ())}
        methods = _methods(kind)
        values = [name for name in kind.OPEN if name not in methods]
        return "new", len(self._lent) - 1, getattr(kind, "KIND", "object"), kind.__name__, methods, values, fixed

    def _end_as_it_did(self) -> NoReturn:
        """The piece's process is gone, or says too much: this one ends as it did, and the grader says how."""
        os.close(self._from)
        os.close(self._to)
        status = self._nursery.wait(self._pid)
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) != signal.SIGKILL:
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status))


def _methods(kind: Any) -> list[str]:
    return [name for name in kind.OPEN if callable(getattr(kind, name, None))]


class _Array:
    """An argument that is an array of a rank's."""

    def __init__(self, number: int, array: NDArray[Any]) -> None:
        self.number, self.array = number, array


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, guest: Guest) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._guest = guest

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Far):
            return "far", obj._number
        if isinstance(obj, _Array):
            array = obj.array
            return "array", obj.number, self._guest.known(obj.number), array.shape, array.strides, array.dtype
        if type(obj) is list and (number := self._guest.number_of(obj)) is not None:
            return "list", number, obj[:]
        is_inner = isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__  # others are a library's
        if is_inner or isinstance(obj, MethodType) or hasattr(type(obj), "OPEN"):
            return self._guest.lend(obj)
        return None

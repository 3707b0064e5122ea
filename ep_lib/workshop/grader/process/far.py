"""The worker's side of a learner's Python piece, which runs in a process of its own, behind a pipe.

    piece.call("frame", body)               what the function returned, as plain data
    cache = piece.make("RegistrationCache", register, deregister, 0)   an object that stays there: a Far
    cache.call("known.append", one)         paths go on from an object
    loss.get("requires_grad")               an attribute
    piece.make("torch:mul", weights, 1)     a function of a library, called there

The piece gets copies of its arguments, except functions and objects of classes that declare attributes as ``OPEN``:
these stay here, and the piece calls, reads and writes their open attributes. ``FIXED`` attributes never change and are
copied. So a piece's process has the arguments of its calls, and nothing else of a test.
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
from ep_lib.processes import end_like
from ep_lib.workshop.grader.process import crossing
from ep_lib.workshop.grader.process.crossing import GivenWasChanged
from ep_lib.workshop.grader.process.guest import Nursery
from ep_lib.workshop.grader.scenario import RETURNED_NOTHING

T = TypeVar("T")


class Far:
    """An object in a piece's process. ``shown``: its repr; untrusted, like all data from there."""

    def __init__(self, guest: Guest, number: int, shown: str = "") -> None:
        self._guest, self._number, self._shown = guest, number, shown

    def __repr__(self) -> str:
        return self._shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Far) and self._guest is other._guest and self._number == other._number

    def __hash__(self) -> int:
        return self._number

    def call(self, path: str, *given: Any, unchanged: str = "", may_be_none: bool = False, **named: Any) -> Any:
        """The result of a function. ``unchanged``: the names of the first arguments, which the call must not change;
        "_" for one that it may change.

        Raises the function's exceptions; GivenWasChanged; TypeError if it returns None, unless allowed.
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
        """An attribute; without a path, the object's own value, if it is plain data."""
        return self._guest.ask(self._number, "get", path=path)

    def set(self, name: str, value: Any) -> None:
        self._guest.ask(self._number, "set", path=name, given=(value,))


def _something(path: str, found: T, *, may_be_none: bool) -> T:
    if found is None and not may_be_none:
        raise TypeError(f"{path.rpartition('.')[2]}() {RETURNED_NOTHING}")
    return found


class Guest(Far):
    """The piece itself, and its process. Only one caller may use it at a time."""

    def __init__(self, nursery: Nursery, piece: str, endless: Sequence[str], share: float, *, compiles: bool) -> None:
        self._nursery = nursery
        self._pid, self._from, self._to = nursery.new(piece, endless, share, compiles=compiles)
        self._lent: list[Any] = []
        # Shared lists, and shared arrays of a rank; each with the state that the piece knows.
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._mirror: list[tuple[NDArray[np.uint8], bytes]] = []
        super().__init__(self, 0, piece)

    def imported(self) -> list[str]:
        """Waits until the piece is imported, and returns the modules that the import has loaded, as the piece's process
        reports. Raises the import's exceptions."""
        return [str(name) for name in self._outcome() or ()]

    def anew(self) -> None:
        """Imports the piece again: its variables have their initial values, and it has no objects of this process."""
        self._forget()
        self.ask(0, "anew")

    def _forget(self) -> None:
        """Drops arrays, which would keep the heap of a machine alive."""
        self._lent.clear()
        self._lists.clear()
        self._mirror.clear()

    def array(self, array: NDArray[Any]) -> _Array:
        """Passes an array that kernels use as a shared one instead of a copy: each side sees the other's changes at
        every call. No kernel runs in between."""
        plain = np.asarray(array)
        in_memory = plain.transpose(np.argsort([-stride for stride in plain.strides], kind="stable"))
        flat = in_memory.reshape(-1).view(np.uint8)
        for number, (before, known) in enumerate(self._mirror):
            if before.size == flat.size and before.ctypes.data == flat.ctypes.data:
                self._mirror[number] = flat, known  # if memory was freed and reused, this array counts
                return _Array(number, plain)
        self._mirror.append((flat, flat.tobytes()))
        return _Array(len(self._mirror) - 1, plain)

    def share(self, shared: list[Any]) -> None:
        """Shares a list: when it is passed later, the piece has a list with the same content."""
        self._lists.append((shared, shared[:]))

    def number_of(self, shared: list[Any]) -> int | None:
        """The number of a shared list."""
        return next((number for number, (each, _) in enumerate(self._lists) if each is shared), None)

    def known(self, number: int) -> bytes:
        """The content of an array that the piece knows, or will know next."""
        return self._mirror[number][1]

    def ask(self, number: int, what: str, **order: Any) -> Any:
        self._say({"object": number, "do": what, **order})
        return self._outcome()

    def end(self) -> None:
        """Ends its process, and the processes in its group. The supervisor ends any others."""
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has moved to another group
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
        except Exception as error:  # noqa: BLE001 - the piece has called, and gets the exception
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
        """The placeholder for an object of this process in a message to the piece."""
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
        """Ends this process like the piece's, which has ended or sent too much; the grader reports it."""
        os.close(self._from)
        os.close(self._to)
        end_like(self._nursery.wait(self._pid))


def _methods(kind: Any) -> list[str]:
    return [name for name in kind.OPEN if callable(getattr(kind, name, None))]


class _Array:
    """An argument that is a rank's array."""

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
        is_inner = isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__  # others belong to a library
        if is_inner or isinstance(obj, MethodType) or hasattr(type(obj), "OPEN"):
            return self._guest.lend(obj)
        return None

"""Messages between the worker, which plays the test's part, and the process of a learner's Python piece.

The worker is trusted, so it sends pickles; a piece sends only JSON (:mod:`ep_lib.bootstrap.wire`). An object that is
not plain data stays in its process, and a number represents it.
"""

from __future__ import annotations

import builtins
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import errors
from ep_lib.errors import EpError
from ep_lib.memory.arrays import like
from ep_lib.processes import read_exactly, write_all
from ep_lib.workshop.grader.pieces import place_in

MAX_MESSAGE = 4000  # characters of an exception that travel
MOST_TOLD = 32 << 20  # bytes of one message from a piece
_TYPES = frozenset((bool, int, float, *np.sctypeDict.values()))
_GROUP = getattr(builtins, "ExceptionGroup", None)  # contains others, which are not sent
_LENGTH = struct.Struct("<I")
_SIMPLE = (bool, int, float, str, type(None))
PLAIN = (*_SIMPLE, bytes, bytearray, memoryview, np.generic, np.ndarray)


class GivenWasChanged(EpError):
    """A call has changed an argument that its caller still needs."""


def cut(text: str) -> str:
    """Cuts a text to MAX_MESSAGE characters, at the end of a line."""
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE].rpartition("\n")[0]


# ---- exceptions ------------------------------------------------------------------------------------------------------
def told_of(error: BaseException, mine: Path | None = None) -> dict[str, Any]:
    """An exception as a message. ``mine``: the folder of the learner's files, whose line is included if the error
    passed through one."""
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)],
        "text": cut(str(error)),
        "more": {name: value for name, value in vars(error).items() if isinstance(value, _SIMPLE)},
        "place": "" if mine is None else place_in(mine, error),
    }


def error_of(told: Mapping[str, Any]) -> Exception:
    """The exception for the message ``told``: with its name, derived from the first of its classes that Python or this
    library has. Its attribute ``place`` is the line in a piece, if any."""
    kinds = [str(kind) for kind in told["kinds"]]
    base = next(filter(None, map(_known, kinds)), Exception)
    kind: Any = type(kinds[0], (base,), {"__str__": lambda self: str(self.args[0]), "__init__": lambda *_: None})
    error: Exception = kind.__new__(kind, str(told["text"]))
    error.args = (str(told["text"]),)
    vars(error).update(told["more"], place=str(told["place"]))
    return error


def _known(name: str) -> type[Exception] | None:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    is_one = isinstance(found, type) and issubclass(found, Exception) and found is not _GROUP
    return found if is_one else None


# ---- values ----------------------------------------------------------------------------------------------------------
def value_of(obj: Any) -> Any:
    """A piece's object as plain data: a tensor's array, the elements of an iterable. None: it is plain already, or has
    no values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return ["tensor", like("numpy", obj.detach())]
    if isinstance(obj, np.dtype) or (isinstance(obj, type) and obj in _TYPES):
        return ["dtype", np.dtype(obj).name]
    if isinstance(obj, np.ndarray) and (obj.dtype.hasobject or obj.dtype.names):
        return ["parts", obj.tolist()]
    if type(obj) in (list, tuple, set, frozenset, dict) or isinstance(obj, PLAIN):
        return None
    if isinstance(obj, Mapping):
        return ["mapping", list(map(list, obj.items()))]
    return ["parts", list(obj)] if isinstance(obj, Iterable) else None


def object_of(kind: str, value: Any) -> Any:
    """The inverse of :func:`value_of`, except for the class of containers."""
    if kind == "tensor":
        return like("torch", value)
    if kind == "dtype":
        return np.dtype(value)
    return dict(value) if kind == "mapping" else tuple(value)


# ---- messages --------------------------------------------------------------------------------------------------------
def write(fd: int, data: bytes) -> None:
    """Writes one message. Raises BrokenPipeError if the other end is gone."""
    write_all(fd, _LENGTH.pack(len(data)) + data)


def read(fd: int, most: int | None = None) -> bytes:
    """Reads one message; b"" if the other end is closed, or announces more than ``most`` bytes."""
    prefix = read_exactly(fd, _LENGTH.size)
    length = _LENGTH.unpack(prefix)[0] if prefix else 0
    return b"" if most is not None and length > most else read_exactly(fd, length)

"""Objects as JSON, for ranks that meet over a network: data from untrusted peers is never unpickled.

None, truth values, numbers, strings, bytes, NumPy arrays and scalars, and lists, tuples, sets and dictionaries of
these. The caller's ``other`` converts further types to these and back; it is called first for everything but the
simplest types.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows "bfloat16" and the like by name from here on
import numpy as np

from ep_lib.errors import ArgumentError, RankFailed

_DEPTH = 64  # of nested containers
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d+(\[\w+\])?|[a-z]{2}\w*", re.ASCII)  # "<f4", "<M8[ns]", "bfloat16"
Other = Callable[[Any], Any]


def _no_other(_: Any) -> None:
    return None


def dumps(obj: object, other: Other = _no_other) -> bytes:
    """``obj`` for :func:`loads` on another rank. Raises ArgumentError for unsupported objects. ``other`` returns plain
    data for objects that it converts, and None for others."""
    return json.dumps(_plain(obj, _DEPTH, other)).encode()


def loads(data: bytes, rank: int, other: Other = _no_other) -> Any:
    """The object that ``rank`` has passed to :func:`dumps`. Raises RankFailed for bytes of another origin. ``other`` is
    the inverse of that of ``dumps``."""
    try:
        return _object(json.loads(data), other)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RankFailed(
            f"what arrived from rank {rank} was not sent by ep_lib ({type(error).__name__}: {error}): do all ranks run "
            f"the same version, and does another program use the same port?",
            rank=rank,
        ) from error


def _plain(obj: Any, depth: int, other: Other) -> Any:
    if obj is None or type(obj) in (bool, int, float, str):
        return obj
    if depth == 0:
        raise ArgumentError(f"values that travel have at most {_DEPTH} containers inside each other")
    if (found := other(obj)) is not None:
        return {"other": _plain(found, depth - 1, other)}
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return {"bytes": _text(bytes(obj))}
    if isinstance(obj, (np.ndarray, np.generic)) and obj.dtype.hasobject is False and obj.dtype.names is None:
        kind = obj.dtype.name if obj.dtype.isbuiltin == 2 else obj.dtype.str  # 2: a type of ml_dtypes
        return {"array": [kind, list(obj.shape), _text(obj.tobytes()), isinstance(obj, np.generic)]}
    if isinstance(obj, (int, float, str)):
        return json.loads(json.dumps(obj))  # of an enumeration, for example: its plain value
    for kind, name in ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset")):
        if type(obj) is kind:
            return {name: [_plain(item, depth - 1, other) for item in obj]}
    if type(obj) is dict:
        return {"dict": [[_plain(each, depth - 1, other) for each in item] for item in obj.items()]}
    raise ArgumentError(
        f"ranks on a network exchange plain data (numbers, strings, bytes, NumPy arrays, and lists, tuples, sets and "
        f"dictionaries of these), and no {type(obj).__module__}.{type(obj).__qualname__}: what arrives over a network "
        f"is not unpickled"
    )


def _object(plain: Any, other: Other) -> Any:
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    ((name, value),) = plain.items()
    if name == "other":
        return other(_object(value, other))
    if name == "bytes":
        return base64.b64decode(value, validate=True)
    if name == "array":
        kind, shape, text, is_scalar = value
        if not _DTYPE.fullmatch(kind):  # NumPy would parse more than that, as Python
            raise ValueError(f"{kind!r} is no dtype that is sent here")
        array = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind)).reshape(shape).copy()
        return array[()] if is_scalar else array
    if name == "dict":
        return {_object(key, other): _object(item, other) for key, item in value}
    containers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return containers[name](_object(item, other) for item in value)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

"""Objects as JSON, for ranks that meet over a network: what strangers may have sent is never unpickled.

None, truth values, numbers, strings, bytes, NumPy arrays and scalars, and lists, tuples, sets and dictionaries of
these.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows "bfloat16" and the like by name from here on
import numpy as np

from ep_lib.errors import ArgumentError, RankFailed

_DEPTH = 64  # of nested containers
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d+(\[\w+\])?|[a-z]{2}\w*", re.ASCII)  # "<f4", "<M8[ns]", "bfloat16"


def dumps(obj: object) -> bytes:
    """``obj`` for :func:`loads` on another rank. Raises ArgumentError for what is not plain data."""
    return json.dumps(_plain(obj, _DEPTH)).encode()


def loads(data: bytes, rank: int) -> Any:
    """What ``rank`` has passed to :func:`dumps`. Raises RankFailed if these bytes never came from there."""
    try:
        return _object(json.loads(data))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RankFailed(
            f"what arrived from rank {rank} was not sent by ep_lib ({type(error).__name__}: {error}): do all ranks run "
            f"the same version, and does another program use the same port?",
            rank=rank,
        ) from error


def _plain(obj: Any, depth: int) -> Any:
    if obj is None or type(obj) in (bool, int, float, str):
        return obj
    if depth == 0:
        raise ArgumentError(f"ranks exchange values of at most {_DEPTH} containers inside each other")
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return {"bytes": _text(bytes(obj))}
    if isinstance(obj, (np.ndarray, np.generic)) and obj.dtype.hasobject is False and obj.dtype.names is None:
        kind = obj.dtype.name if obj.dtype.isbuiltin == 2 else obj.dtype.str  # 2: a type of ml_dtypes
        return {"array": [kind, list(obj.shape), _text(obj.tobytes()), isinstance(obj, np.generic)]}
    if isinstance(obj, (int, float, str)):
        return json.loads(json.dumps(obj))  # of an enumeration, for example: its plain value
    for kind, name in ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset")):
        if type(obj) is kind:
            return {name: [_plain(item, depth - 1) for item in obj]}
    if type(obj) is dict:
        return {"dict": [[_plain(key, depth - 1), _plain(value, depth - 1)] for key, value in obj.items()]}
    raise ArgumentError(
        f"ranks on a network exchange plain data (numbers, strings, bytes, NumPy arrays, and lists, tuples, sets and "
        f"dictionaries of these), and no {type(obj).__module__}.{type(obj).__qualname__}: what arrives over a network "
        f"is not unpickled"
    )


def _object(plain: Any) -> Any:
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    ((name, value),) = plain.items()
    if name == "bytes":
        return base64.b64decode(value, validate=True)
    if name == "array":
        kind, shape, text, is_scalar = value
        if not _DTYPE.fullmatch(kind):  # NumPy would parse more than that, as Python
            raise ValueError(f"{kind!r} is no dtype that is sent here")
        array = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind)).reshape(shape).copy()
        return array[()] if is_scalar else array
    if name == "dict":
        return {_object(key): _object(item) for key, item in value}
    containers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return containers[name](map(_object, value))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

"""The other half of ex10_plan.py, in the child: calls one function of the learner's plan."""

from __future__ import annotations

from typing import Any

import numpy as np


def run(piece: Any, function: str, arguments: tuple[Any, ...]) -> Any:
    """What the function returns, as plain lists; for destinations, its table's type comes first. The first argument is
    a table: a list of the experts of each token, or the truth values of ``wants``, as (shape, packed bits)."""
    table = arguments[0]
    if isinstance(table, tuple):
        shape, bits = table
        wants = np.unpackbits(np.frombuffer(bits, np.uint8), count=int(np.prod(shape))).reshape(shape).astype(np.bool_)
    else:
        wants = np.array(table, np.int64)
    returned = getattr(piece, function)(wants, *arguments[1:])
    if function == "destinations":  # also in lists
        returned = np.asarray(returned)
        return [str(returned.dtype), _plain(returned)]
    return _plain(returned)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value)  # 4.0 is as right as 4
    return int(value) if isinstance(value, (bool, np.bool_, int, np.integer)) else repr(value)[:40]

"""The other half of ex10_plan.py, in the child: calls one function of the learner's plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from ep_lib.workshop.grader.process.far import Guest


def run(piece: Guest, function: str, arguments: tuple[Any, ...]) -> Any:
    """The function's result as plain lists; for destinations, the table's type comes first. The first argument is a
    table as (shape, content): a list of the experts of each token, or the packed bits of ``wants``."""
    shape, content = arguments[0]
    if isinstance(content, bytes):
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=int(np.prod(shape)))
        name, table = "wants", bits.reshape(shape).astype(np.bool_)
    else:
        name, table = "topk_idx", np.array(content, np.int64).reshape(shape)
    returned = piece.call(function, table, *arguments[1:], unchanged=name)
    if function == "destinations":  # also if it returns lists
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

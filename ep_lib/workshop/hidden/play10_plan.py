"""The other half of ex10_plan.py, in the child: calls one function of the learner's plan."""

from __future__ import annotations

from typing import Any

import numpy as np


def run(piece: Any, function: str, arguments: tuple[Any, ...]) -> Any:
    """What the function returns, as plain lists; tables of truth values travel as lists of 0 and 1."""
    converted = [
        np.array(each, np.bool_) if isinstance(each, list) and function != "destinations" else each
        for each in arguments
    ]
    if function == "destinations":
        converted[0] = np.array(arguments[0], np.int64)
    return _plain(getattr(piece, function)(*converted))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value)  # 4.0 is as right as 4
    return int(value) if isinstance(value, (bool, np.bool_, int, np.integer)) else repr(value)[:40]

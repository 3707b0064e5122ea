"""The programs around the kernels of single notebooks: a module each, so that a notebook's cells show what is new."""

from __future__ import annotations

from typing import Any

import numpy as np


def pointers(*names: str) -> list[tuple[str, type[np.uint64]]]:
    """Members of a struct of a tutorial kernel that are addresses, for ``np.dtype``."""
    return [(name, np.uint64) for name in names]


def numbers(*names: str) -> list[tuple[str, type[np.int32]]]:
    """Its members of type ``int``."""
    return [(name, np.int32) for name in names]


def pack(struct: np.dtype[Any], *values: Any) -> Any:
    """A struct as a kernel takes it: arrays become addresses, integers stay what they are."""
    return np.array(tuple(map(address, values)), struct)[()]


def address(value: Any) -> int:
    """Where an array of NumPy or CuPy begins; an integer as it is."""
    if isinstance(value, int):
        return value
    return int(value.ctypes.data if isinstance(value, np.ndarray) else value.data.ptr)


def in_words(value: float, *steps: tuple[float, str], otherwise: str) -> str:
    """The words of the first step that ``value`` is below, for a prediction about a number."""
    return next((words for limit, words in steps if value < limit), otherwise)

"""The programs around the kernels of single notebooks: a module each, so that a notebook's cells show only the new
parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import describe
from ep_lib.workshop.exercises import workshop_root


def packed(header: str | Path, name: str, **fields: Any) -> bytes:
    """A struct that is declared in ``header``, a file of the library or an absolute path: arrays are passed as
    addresses."""
    plain = {
        field: value if isinstance(value, (int, float, bytes)) else describe(value).address
        for field, value in fields.items()
    }
    return header_struct(header, name).pack(**plain)


def of_the_tutorial(file: str, name: str, **fields: Any) -> bytes:
    """The same for a struct declared in a file of tutorial_kernels."""
    return packed(workshop_root("tutorial_kernels", ArgumentError) / "tutorial_kernels" / file, name, **fields)


def in_words(value: float, *steps: tuple[float, str], otherwise: str) -> str:
    """The words of the first step that ``value`` is below, for a prediction about a number."""
    return next((words for limit, words in steps if value < limit), otherwise)


def where_right(choices: Sequence[str], ordered: Mapping[str, int], unordered: Mapping[str, int]) -> str:
    """The choice (on both networks, on the one that keeps order only, on neither) for the outcomes of runs on them."""
    right = [not any(count for outcome, count in runs.items() if outcome != "right") for runs in (ordered, unordered)]
    return choices[[[True, True], [True, False], [False, False]].index(right)]

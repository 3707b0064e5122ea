"""Checks of single values: a whole number, a flag, a number of seconds, a text, an instance.

Each function returns the value, or raises an ArgumentError with its name, the value and the requirement.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import reprlib
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ep_lib.errors import ArgumentError

T = TypeVar("T")

_PLAIN = (type(None), bool, int, float, str, bytes)  # short, and their repr shows their type
_REPR = reprlib.Repr()  # also of objects whose own repr fails
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def show(value: Any) -> str:
    """A value in the text of an error: short, on one line, with its type; arrays by shape and dtype."""
    library = type(value).__module__.partition(".")[0]
    if library in ("numpy", "torch", "cupy") and hasattr(value, "shape") and hasattr(value, "dtype") and value.shape:
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else "an array"
        return f"{kind} of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{brief(value)} ({type(value).__name__})"


def brief(value: Any) -> str:
    """A value in the text of an error, short and on one line."""
    words = " ".join(_REPR.repr(value).split())
    return words if len(words) <= 60 else words[:57] + "..."


def refuse(name: str, value: Any, wanted: str) -> NoReturn:
    """Raises ArgumentError: ``name`` is ``value``; it must be ``wanted``."""
    raise ArgumentError(f"{name} is {brief(value) if type(value) in _PLAIN else show(value)}; it must be {wanted}")


def names_its_arguments(cls: type[T]) -> type[T]:
    """A class decorator: the constructor raises ArgumentError with the names of its parameters, for a call that does
    not fit."""
    make: Callable[..., None] = cls.__init__

    @functools.wraps(make)
    def told(self: T, *args: Any, **options: Any) -> None:
        try:
            make(self, *args, **options)
        except TypeError as error:
            if not is_about_the_call(error):
                raise
            takes = ", ".join([name for name in inspect.signature(make).parameters if name != "self"])
            raise ArgumentError(f"{error}; {cls.__name__} takes {takes}") from error

    setattr(cls, "__init__", told)  # noqa: B010 - mypy does not let a method be assigned
    return cls


def is_about_the_call(error: TypeError) -> bool:
    """Whether a TypeError is about the call itself, so that the function was not entered. For its caller."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def index(value: Any) -> int | None:
    """``value`` as an int, None if it is no whole number. True and False are flags, not numbers."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int, from ``low`` to ``high``."""
    number = index(value)
    if number is None:
        refuse(name, value, f"a whole number from {low} to {high}")
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def at_least_one(name: str, value: Any) -> int:
    """``value`` as an int from 1 to 2**31 - 1, which kernels can take."""
    number = index(value)
    if number is None:
        refuse(name, value, "a whole number, at least 1")
    if number < 1:
        raise ArgumentError(f"{name} is {number}; it must be at least 1")
    if number >= 2**31:
        raise ArgumentError(f"{name} is {number}; it must be below 2**31")
    return number


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool: True, False, 1 or 0. The truth of other values may be unintended."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    refuse(name, value, "True or False")


def seconds(name: str, value: Any) -> float:
    """``value`` as a float above zero; infinite means without a limit."""
    found = _real(value)
    if not found > 0:
        refuse(name, value, "a number of seconds above zero")
    return found


def text(name: str, value: Any) -> str:
    """``value``, a str that encodes as UTF-8 without NUL, which paths and compilers refuse."""
    if not isinstance(value, str):
        refuse(name, value, "a str")
    if "\0" in value or (not value.isprintable() and _SURROGATE.search(value)):
        refuse(name, value, "a str without NUL and lone surrogates")
    return value


def a_path(name: str, value: Any) -> Path:
    """``value``, a str or a Path, as an absolute Path."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        refuse(name, value, "a path")
    try:
        return Path(text(name, os.fspath(value))).expanduser().absolute()
    except RuntimeError as error:  # ~ of a user without a home
        raise ArgumentError(f"{name} is {show(value)}; it must be a path: {error}") from error


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """``value``, one of the ``known`` names."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        refuse(name, value, f"one of {', '.join(map(repr, names))}")
    return value


def several(name: str, value: Any, wanted: str) -> list[Any]:
    """The elements of ``value`` as a list. Refuses a text, a dict and a scalar."""
    try:
        return list(value) if not isinstance(value, (str, bytes, dict)) else refuse(name, value, wanted)
    except TypeError:
        refuse(name, value, wanted)


def number(name: str, value: Any, *, zero: bool = False) -> float:
    """``value`` as a finite float above zero, or ``zero`` itself."""
    found = _real(value)
    if not (found > 0 or (zero and found == 0)) or found == math.inf:
        refuse(name, value, f"a number {'from' if zero else 'above'} zero")
    return found


def _real(value: Any) -> float:
    """``value`` as a float, NaN if it is no real number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def instance(name: str, value: Any, cls: type[T], wanted: str) -> T:
    """``value``, which must be a ``cls``."""
    if not isinstance(value, cls):
        refuse(name, value, wanted)
    return value


def installs(extra: str) -> str:
    """The command that adds an extra to this installation: a clone, or a wheel."""
    root = Path(__file__).resolve().parents[1]
    place = root if (root / "pyproject.toml").is_file() else "PATH-OF-THE-WHEEL"
    return f"pip install {shlex.quote(f'{place}[{extra}]')}"

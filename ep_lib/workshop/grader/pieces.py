"""A learner's Python pieces: importing them, and the places of their errors."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ep_lib.errors import GradingError


def load(path: Path) -> ModuleType:
    """The file as a module, executed anew by each call. Its exceptions propagate, SyntaxError too; GradingError if
    there is no such file."""
    if not path.is_file():
        raise GradingError(f"there is no file {path}; workshop.start() makes it")
    return module_of(path, f"workshop_piece_{path.stem}")


def module_of(path: Path, name: str) -> ModuleType:
    """A Python file as the module ``name``. Its exceptions propagate."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def unfinished(path: Path) -> str:
    """The tasks of a learner's file that are still to do: "tasks 2, 3"; "" if there are none."""
    numbers = re.findall(r"Task (\w+) is still to do", path.read_text(encoding="utf-8")) if path.is_file() else []
    return f"task{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""


def place_in(folder: Path, error: BaseException) -> str:
    """ " (line 12 of x.py)": the last line of a file in ``folder`` that the error went through; else "". For a
    SyntaxError, which has its place, the line's text."""
    if isinstance(error, SyntaxError):
        return f": {error.text.strip()}" if error.text else ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(folder):
            return f" (line {frame.lineno} of {Path(frame.filename).relative_to(folder)})"
    return ""

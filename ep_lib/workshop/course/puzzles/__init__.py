"""Micro-puzzles: one to five lines that a learner writes in a notebook's cell.

``workshop.puzzle("00.1")`` shows the task, folded hints, and a discussed solution. The cell below it begins with
``%%puzzle 00.1``; it puts its lines into the puzzle's template, runs that under the checker with a few seeds, and shows
the reads and writes of each word, and any mistakes.

Begin with puzzle.py: the definition of a puzzle. Each notebook has a module ``nbNN.py`` with its ``PUZZLES``; nb00.py
is the model. cell.py is the interface for notebooks. Importing this package imports none of its modules.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from ep_lib.errors import ArgumentError
from ep_lib.require import text

if TYPE_CHECKING:
    from ep_lib.workshop.course.puzzles.puzzle import Puzzle


def notebooks() -> list[str]:
    """The numbers of the notebooks that have puzzles: "00", "01", ..."""
    return sorted(path.stem.removeprefix("nb") for path in Path(__file__).parent.glob("nb[0-9][0-9].py"))


def puzzles_of(notebook: str) -> tuple[Puzzle, ...]:
    """The puzzles of a notebook ("00"). Raises ArgumentError if it has none."""
    if notebook not in notebooks():
        raise ArgumentError(f"notebook {notebook!r} has no puzzles; these have: {', '.join(notebooks())}")
    found: tuple[Puzzle, ...] = importlib.import_module(f"ep_lib.workshop.course.puzzles.nb{notebook}").PUZZLES
    return found


def find(number: str) -> Puzzle:
    """The puzzle called ``number`` ("00.1"). Raises ArgumentError, which lists those of that notebook."""
    wanted = text("a puzzle's number", number).strip()
    known = puzzles_of(wanted.partition(".")[0])
    for puzzle in known:
        if puzzle.number == wanted:
            return puzzle
    raise ArgumentError(f"there is no puzzle {wanted!r}; there are: {', '.join(puzzle.number for puzzle in known)}")

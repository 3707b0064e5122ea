"""Code as honest people write it, in otherwise right solutions: python.txt and cpp.txt say how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ep_lib.workshop.exercises import Exercise, find, names

FOLDER = Path(__file__).parent
_PYTHON = [name for name in names() if find(name).pieces[0].endswith(".py")]
_CPP = ["01_write_signal", "06_slots", "07_sums"]


class Idiom(NamedTuple):
    name: str
    exercise: str
    code: str
    instead: str  # of this line of the solution; "" if it is appended


def idioms(table: str) -> list[Idiom]:
    """Of "python.txt" or "cpp.txt": those without an exercise of their own take turns in the exercises."""
    exercises = _PYTHON if table == "python.txt" else _CPP
    parts = re.split(r"(?m)^(?:#|//) === (.*)\n", (FOLDER / table).read_text("utf-8"))[1:]
    found = []
    for number, (head, code) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        name, _, place = head.partition(" @ ")
        exercise, _, line = place.partition(": ")
        found.append(Idiom(name, exercise or exercises[number % len(exercises)], code, line))
    return found


def submission(of: Sequence[Idiom], folder: Path) -> tuple[Exercise, Path]:
    """A right solution with all these idioms, which are of one exercise, in a folder."""
    exercise = find(of[0].exercise)
    text = (exercise.solution_dir / exercise.pieces[0]).read_text("utf-8")
    for each in of:
        if each.instead:
            assert text.count(f"    {each.instead}\n") == 1, each
            text = text.replace(each.instead, each.code.rstrip("\n"))
        elif not each.code.startswith("from __future__"):
            text += f"\n\n{each.code}"
        elif each.code not in text:
            text = each.code + text
    (folder / exercise.pieces[0]).parent.mkdir(parents=True, exist_ok=True)
    (folder / exercise.pieces[0]).write_text(text, "utf-8")
    return exercise, folder

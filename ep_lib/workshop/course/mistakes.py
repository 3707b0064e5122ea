"""Finds the lines of a learner's piece with a mistake."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ep_lib.callers import short_path
from ep_lib.errors import GradingError
from ep_lib.jit import sealed
from ep_lib.workshop.exercises import Exercise, Task

_MOST_LINES = 8  # of the quick tests' output
_HOLE = re.compile(r"\s*(?://|#) TASK (?P<task>\d+)\w? \(")  # see generate.py
_HOLE_ENDS = re.compile(r"\s*(?://|#) end of TASK ")


def mistake_in(exercise: Exercise, folder: Path) -> str:
    """For a wrong piece: its first task that fails the quick tests, the task's lines, and the tests' message."""
    from ep_lib.workshop.grader.grading import grade  # slow to import

    files = ", ".join(short_path(folder / name) for name in exercise.pieces)
    more = f"`{sealed.tested_by(exercise.short_name)}` says more"
    try:
        result = grade(exercise.name, folder, public=True, root=exercise.root)
    except GradingError as error:
        return f"{files} (its quick tests cannot run: {error}); {more}"
    failed = next((each for each in result.tasks if not each.passed), None)
    if failed is None:
        return f"{files}, though its quick tests pass; {more}"
    where = " and ".join(
        f"{short_path(folder / name)}:{line}" for name, line in _lines_of(exercise, folder, failed.task)
    )
    lines = [f"{where or files}: your task {failed.task.number}, {failed.task.title}"]
    lines += [f"    {line}" for line in failed.message.splitlines()[:_MOST_LINES]]
    return "\n".join([*lines, f"    ({more})"])


def _lines_of(exercise: Exercise, folder: Path, task: Task) -> Iterator[tuple[str, int]]:
    """The places of the learner's code for a task: file and line, the first of each hole."""
    for name in exercise.pieces:
        given = (exercise.exercise_dir / name).read_text(encoding="utf-8").splitlines()
        theirs = (folder / name).read_text(encoding="utf-8").splitlines()
        changes = difflib.SequenceMatcher(None, given, theirs, autojunk=False).get_opcodes()
        written = [change[1:] for change in changes if change[0] in ("replace", "insert")]
        for begin, end in _holes(given, task):
            inside = (first for low, high, first, _ in written if low < end and begin < high)
            if (line := next(inside, None)) is not None:
                yield name, line + 1


def _holes(given: Sequence[str], task: Task) -> Iterator[tuple[int, int]]:
    begin = None
    for number, line in enumerate(given):
        if (hole := _HOLE.match(line)) and int(hole["task"]) == task.number:
            begin = number
        elif begin is not None and _HOLE_ENDS.match(line):
            yield begin, number + 1
            begin = None

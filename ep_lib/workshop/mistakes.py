"""Whose mistake it is that a run on a learner's own pieces is wrong, and in which lines of theirs it is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ep_lib.callers import short_path
from ep_lib.errors import GradingError
from ep_lib.workshop.exercises import Task

if TYPE_CHECKING:
    from ep_lib.workshop.mine import Piece

_MOST_LINES = 8  # of what the quick tests say
_HOLE = re.compile(r"\s*(?://|#) TASK (?P<task>\d+)\w? \(")  # see generate.py
_HOLE_ENDS = re.compile(r"\s*(?://|#) end of TASK ")


def whose_mistake(found: Sequence[Piece], is_right: Callable[[Sequence[Piece]], bool]) -> str:
    """In sentences: the library's pieces alone are tried, then each of the learner's among them; the quick tests of a
    guilty one say which of its tasks it is."""
    if not is_right(()):
        return "With the library's pieces alone it is wrong as well: this is not your mistake."
    guilty = [piece for piece in found if piece.is_mine and not is_right((piece,))]
    if not guilty:
        return "Each of your pieces works beside the library's; it is wrong only with all of them."
    return "\n".join(["With the library's pieces it is right. The mistake is in:", *map(_told, guilty)])


def _told(piece: Piece) -> str:
    from ep_lib.workshop.grader import grade  # loads the tests of all exercises

    exercise = piece.exercise
    files = ", ".join(map(short_path, piece.files))
    more = f"`ep-lib grade {exercise.short_name}` says more"
    try:
        result = grade(exercise.name, piece.folder, public=True, root=exercise.root)
    except GradingError as error:
        return f"{files} (its quick tests cannot run: {error}); {more}"
    failed = next((each for each in result.tasks if not each.passed), None)
    if failed is None:
        return f"{files}, though its quick tests pass; {more}"
    where = " and ".join(f"{short_path(piece.folder / file)}:{line}" for file, line in lines_of(piece, failed.task))
    lines = [f"{where or files}: your task {failed.task.number}, {failed.task.title}"]
    lines += [f"    {line}" for line in failed.message.splitlines()[:_MOST_LINES]]
    return "\n".join([*lines, f"    ({more})"])


def lines_of(piece: Piece, task: Task) -> Iterator[tuple[str, int]]:
    """Where the learner has written what a task asks for: file and line, the first of each hole."""
    for name in piece.exercise.pieces:
        given = (piece.exercise.exercise_dir / name).read_text(encoding="utf-8").splitlines()
        theirs = (piece.folder / name).read_text(encoding="utf-8").splitlines()
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

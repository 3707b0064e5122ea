"""Points for the puzzles in a submitted notebook: one for each ``%%puzzle`` cell whose lines are right.

Puzzles run behind the same walls as exercises. But the verdict comes from the process that runs the learner's lines,
and the notebook contains each solution: these points are for practice, not for an examination.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_lib.errors import GradingError
from ep_lib.processes import temporary_folder
from ep_lib.workshop.course import puzzles
from ep_lib.workshop.exercises import Exercise, Task, workshop_root
from ep_lib.workshop.grader.scenario import ANSWERS, Call, Outputs

if TYPE_CHECKING:
    from ep_lib.workshop.grader.grading import Grade
    from ep_lib.workshop.grader.process.far import Guest
    from ep_lib.workshop.hidden import Behaviour

_PREFIX = "puzzles_"
_CELL = re.compile(r"\s*%%puzzle[ \t]+([0-9]{2}\.[0-9]+)[ \t]*(?:\r?\n|$)")
_SECONDS = 30.0  # of one answer, for compiling and running with several seeds
_HEAP_BYTES = 16 << 20  # the child's address space is limited
_TO_DO = "this puzzle is still to do"  # the wording of an exercise's holes


def names() -> list[str]:
    """The names in place of an exercise's: "puzzles_00", ..."""
    return [_PREFIX + number for number in puzzles.notebooks()]


def name_of(number: str) -> str | None:
    """The group of a puzzle: "puzzles_01" for "01.2"; None if there is no such puzzle."""
    notebook = number.partition(".")[0]
    is_known = notebook in puzzles.notebooks() and any(p.number == number for p in puzzles.puzzles_of(notebook))
    return _PREFIX + notebook if is_known else None


def is_of_puzzles(exercise: str) -> bool:
    return exercise.startswith(_PREFIX)


def answers_in(notebook: bytes) -> dict[str, str]:
    """The lines by puzzle in a notebook's ``%%puzzle`` cells; of several cells for one puzzle, the last that is not
    empty.

    Raises GradingError if it is no notebook.
    """
    try:
        cells = json.loads(notebook.decode("utf-8-sig"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GradingError(
            f"it is no notebook ({type(error).__name__}: {error}); save it again from Jupyter"
        ) from error
    found: dict[str, str] = {}
    for text in texts:
        if match := _CELL.match(text):
            lines = text[match.end() :]
            if lines.strip() or match[1] not in found:
                found[match[1]] = lines
    return found


def as_exercise(name: str) -> Exercise:
    """The puzzles of a notebook ("puzzles_01") as tasks of one point each."""
    number = name.removeprefix(_PREFIX)
    tasks = tuple(Task(place, each.title, 1) for place, each in enumerate(puzzles.puzzles_of(number), 1))
    return Exercise(name, f"The puzzles of notebook {number}", workshop_root("notebooks"), "", (ANSWERS,), tasks, ())


def solutions(name: str) -> dict[str, bytes]:
    """The course's own answers."""
    return {each.number: each.solution.encode() for each in puzzles.puzzles_of(name.removeprefix(_PREFIX))}


def grade(name: str, files: Mapping[str, bytes], *, seed: int | None = None, tasks: Sequence[int] = ()) -> Grade:
    """Grades answers by puzzle ("01.1"), as UTF-8 text; missing ones are still to do."""
    from ep_lib.workshop.grader.grading import examine
    from ep_lib.workshop.grader.process.sandbox import Limits
    from ep_lib.workshop.hidden import HiddenTests

    exercise = as_exercise(name)
    found = {number: content.decode(errors="replace") for number, content in files.items()}
    asked = puzzles.puzzles_of(name.removeprefix(_PREFIX))
    behaviours = tuple(_behaviour(place, each.number) for place, each in enumerate(asked, 1))
    tests = HiddenTests((), behaviours, readable=(Path(__file__).parent,))
    with temporary_folder("ep_puzzles_") as folder:
        (folder / ANSWERS).write_text(f"ANSWERS = {found!r}\n", encoding="utf-8")
        return examine(
            exercise, folder, tests, Limits(request_s=_SECONDS, total_s=_SECONDS * len(asked)), seed=seed, tasks=tasks
        )


def _behaviour(task: int, number: str) -> Behaviour:
    from ep_lib.workshop.hidden import Behaviour, Case

    def judge(outputs: Outputs) -> str | None:
        seen: Any = outputs.seen
        if not isinstance(seen, list) or len(seen) != 2:
            return "the answer gave no verdict"
        kind, text = map(str, seen)
        return None if kind == "right" else _TO_DO if kind == "to do" else text.rstrip(".")

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        yield Case(Call("attempt", {"number": number}, program=__file__, piece=ANSWERS), judge)

    return Behaviour(task, f"puzzle {number} is right", cases)


def attempt(answers: Guest, number: str) -> list[str]:
    """In the child: the kind and text of the verdict on an answer, which runs in a process of its own."""
    return list(
        answers.call("ep_lib.workshop.course.puzzles.graded:verdict", answers.get("ANSWERS").get(number, ""), number)
    )


def verdict(lines: str, number: str) -> list[str]:
    """The verdict, computed in that process."""
    os.environ["EP_LIB_HEAP_BYTES"] = str(_HEAP_BYTES)
    found = puzzles.find(number).attempt(lines)
    return [found.kind, f"{found.headline}\n{found.text}".strip()]

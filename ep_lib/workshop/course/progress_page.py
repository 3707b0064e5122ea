"""The learner's progress page: stages, predictions, puzzles, exercises and points so far, and what to do next.

It shows the content of mine/progress.json: answers, solutions, checks and grades on this machine, from notebooks or
``ep-lib grade``. An instructor's gradebook may differ, and takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.jit import sealed
from ep_lib.workshop import exercises
from ep_lib.workshop.classroom.gradebook_views import write
from ep_lib.workshop.course import progress, puzzles
from ep_lib.workshop.course.course_map import MAIN, STAGES, Stage
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.grader.grading import Grade, default_mine
from ep_lib.workshop.pages import counted, number, render

_NOT_BEGUN, _BEGUN, _CHECKED = "not begun", "begun", "all checks pass"


@dataclass(frozen=True)
class ExerciseProgress:
    """The progress of an exercise. ``points`` is None until it has been graded; ``words`` describe its state."""

    exercise: Exercise
    points: int | None
    words: str

    @property
    def points_in_words(self) -> str:
        if sealed.in_use() and self.points is None:
            return f"worth {self.exercise.points} points"
        return f"{number(self.points) or '-'} of {self.exercise.points}"

    @property
    def is_done(self) -> bool:
        """Whether it has full points; in a release, which has no tests for points, whether it passes all checks."""
        return self.points == self.exercise.points or (sealed.in_use() and self.words.startswith(_CHECKED))


@dataclass(frozen=True)
class StageProgress:
    """A notebook: the number of solved puzzles, the predictions, and its exercises."""

    notebook: str
    title: str
    predicted: int
    solved: tuple[str, ...]
    unsolved: tuple[str, ...]
    exercises: tuple[ExerciseProgress, ...]
    is_main: bool = True  # on the main path

    @property
    def is_done(self) -> bool:
        return not self.unsolved and all(each.is_done for each in self.exercises)

    @property
    def puzzles_in_words(self) -> str:
        all_of_them = len(self.solved) + len(self.unsolved)
        predicted = f", {counted(self.predicted, 'prediction')} made" if self.predicted else ""
        return f"{len(self.solved)} of {all_of_them} puzzles{predicted}" if all_of_them else f"no puzzles{predicted}"

    @property
    def is_begun(self) -> bool:
        return bool(self.predicted or self.solved or any(each.words != _NOT_BEGUN for each in self.exercises))


@dataclass(frozen=True)
class MyProgress:
    """A learner's progress, as a notebook display and as text; ``save`` writes it as a page."""

    stages: tuple[StageProgress, ...]

    @property
    def points(self) -> int:
        return sum(each.points or 0 for stage in self.stages for each in stage.exercises)

    @property
    def possible(self) -> int:
        return sum(each.exercise.points for stage in self.stages for each in stage.exercises)

    @property
    def so_far(self) -> str:
        if sealed.in_use():
            found = [each.is_done for stage in self.stages for each in stage.exercises]
            return f"{sum(found)} of {len(found)} exercises pass all checks"
        return f"{self.points} of {self.possible} points"

    @property
    def next(self) -> str:
        """What to do next: the first open item, the main path first."""
        for stage in sorted(self.stages, key=lambda each: not each.is_main):
            for each in stage.exercises:
                if each.words != _NOT_BEGUN and not each.is_done:
                    return f"Exercise {each.exercise.name}: {each.words}."
            if stage.unsolved:
                return f"Notebook {stage.notebook}, {stage.title}: puzzle {stage.unsolved[0]} is not solved yet."
            for each in stage.exercises:
                if not each.is_done:
                    return f"Exercise {each.exercise.name}: begin with workshop.start({each.exercise.short_name!r})."
        return "You have done all of it. `python extras/contest`, in a clone, is about speed."

    def __repr__(self) -> str:
        lines = [f"{self.so_far} so far. Next: {self.next}", ""]
        for stage in self.stages:
            mark = "#" if stage.is_done else ">" if stage.is_begun else "."
            side = "" if stage.is_main else ", a side path"
            lines.append(f"  {mark} {stage.notebook} {stage.title}{side}: {stage.puzzles_in_words}")
            lines += [f"       {each.points_in_words}  {each.exercise.name}: {each.words}" for each in stage.exercises]
        return "\n".join([*lines, "  # done, > begun, . comes later"])

    def _repr_html_(self) -> str:
        return render("progress_table.html", progress=self)

    def save(self, path: str | Path) -> Path:
        """Writes it as a page for a browser. Raises GradingError if it cannot be written."""
        path = Path(path)
        write(path.parent, {path.name: render("progress.html", title="Your progress", progress=self)})
        return path


def keep(result: Grade) -> None:
    """Keeps a check or a grading of the learner's own files; ignores other files and single tasks."""
    mine = default_mine(result.exercise)
    is_own = result.mine == mine != result.exercise.exercise_dir
    if not is_own or len(result.tasks) != len(result.exercise.tasks):
        return
    done = [each.task.number for each in result.tasks if each.passed]

    def kept(before: Any) -> dict[str, Any]:
        known = {**before, "checked": done} if isinstance(before, dict) else {"checked": done}
        earned = known.get("points")
        if result.public or (isinstance(earned, int) and result.points < earned):  # by an earlier version of the files
            return known
        return {**known, "points": result.points, "passed": done}

    progress.update(progress.EXERCISES, result.exercise.name, kept)


def my_progress() -> MyProgress:
    """The learner's progress. Raises GradingError if there is no workshop here."""
    root = exercises.workshop_root()
    found = [exercises.find(name, root) for name in exercises.names(root)]
    predictions = progress.all_of(progress.PREDICTIONS)
    solved = progress.all_of(progress.PUZZLES)
    known = [each.number for notebook in puzzles.notebooks() for each in puzzles.puzzles_of(notebook)]
    return MyProgress(tuple(_stage(each, found, known, predictions, solved) for each in STAGES))


def _stage(
    stage: Stage, found: list[Exercise], puzzles: list[str], predictions: Mapping[str, Any], solved: Mapping[str, Any]
) -> StageProgress:
    known = [each for each in puzzles if stage.has(each)]
    return StageProgress(
        notebook=stage.notebook,
        title=stage.title,
        predicted=sum(map(stage.has, predictions)),
        solved=tuple(each for each in known if each in solved),
        unsolved=tuple(each for each in known if each not in solved),
        exercises=tuple(_exercise(each) for each in found if stage.has(each.name)),
        is_main=stage in MAIN,
    )


def _exercise(exercise: Exercise) -> ExerciseProgress:
    kept = _kept(exercise)
    points, checked = kept.get("points"), kept.get("checked")
    tasks = [task.number for task in exercise.tasks]
    if isinstance(points, int):
        passed = kept.get("passed")
        passed = passed if isinstance(passed, list) else tasks
        now = checked if isinstance(checked, list) else passed
        left = [task for task in tasks if task not in passed and task not in now]
        lost = [task for task in passed if task not in now]
        gained = [task for task in tasks if task in now and task not in passed]
        words = f"graded; not passed yet: task {', '.join(map(str, left))}" if left else "graded"
        if gained:
            again = "hand it in again" if sealed.in_use() else "`ep-lib grade` gives points"
            words += f"; right in the last check: task {', '.join(map(str, gained))} ({again})"
        if lost:
            words += f"; points of an earlier version: not right any more: task {', '.join(map(str, lost))}"
        return ExerciseProgress(exercise, points, words)
    if isinstance(checked, list):
        left = [task for task in tasks if task not in checked]
        gives = f"hand in mine/{exercise.name} for points" if sealed.in_use() else "`ep-lib grade` gives points"
        words = f"checked; not right yet: task {', '.join(map(str, left))}" if left else f"{_CHECKED}: {gives}"
        return ExerciseProgress(exercise, None, words)
    own = default_mine(exercise)
    return ExerciseProgress(exercise, None, _BEGUN if own != exercise.exercise_dir else _NOT_BEGUN)


def _kept(exercise: Exercise) -> dict[str, Any]:
    kept = progress.get(progress.EXERCISES, exercise.name)
    return kept if isinstance(kept, dict) else {}

"""A failed test of an exercise, step by step: repeats the failed run.

The page describes the test's own lines by their roles, as in the grader's feedback.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ep_lib.errors import ArgumentError, GradingError
from ep_lib.jit import sealed
from ep_lib.runtime.arguments import a_seed
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import Grade, TaskGrade, grade, recorded
from ep_lib.workshop.grader.scenario import Scenario

if TYPE_CHECKING:
    from ep_lib.viz.page import Page


def to_watch(result: Grade) -> TaskGrade | None:
    """The first task with a failed run of kernels, if any."""
    failed = (task for task in result.tasks if not task.passed and not task.unfinished and not result.problem)
    return next((task for task in failed if isinstance(task.scenario, Scenario)), None)


def replay(exercise: str | int, task: int, seed: int, mine: Path | str | None, *, public: bool) -> Page:
    """The failed run of a task, with the inputs of an earlier grading; see :func:`ep_lib.workshop.replay`."""
    found = find(exercise)
    found.task(task)
    public = public or sealed.in_use()  # a release has no other tests
    result = grade(found.name, mine, public=public, seed=a_seed(seed), tasks=(task,))
    if result.tasks[0].passed:
        raise GradingError(f"task {task} of {found.name} passes with seed {seed}: there is no failure to look at")
    if to_watch(result) is None:
        why = result.problem or "it is in Python, or it is not written yet"
        raise GradingError(f"task {task} of {found.name} has no run of a kernel to look at: {why}")
    return page_of_grade(result)


def page_of_grade(result: Grade) -> Page:
    """The run in which a task failed: the first seed with a finding, if the checker was on.

    It is made anew behind the grader's walls. Raises ArgumentError if there is no such run, GradingError if it cannot
    be recorded.
    """
    from ep_lib.viz.time_travel import page_from

    task = to_watch(result)
    if task is None or not isinstance(task.scenario, Scenario):
        raise ArgumentError(f"there is no run to look at: no task of {result.exercise.name} has failed in a kernel")
    run = recorded(result.exercise, result.mine, task.scenario)
    schedule = f", schedule {int(run['seed'])}" if not task.scenario.exhaustive else ""
    return page_from(f"{result.exercise.name}, task {task.task.number}, seed {result.seed}{schedule}", run["data"])

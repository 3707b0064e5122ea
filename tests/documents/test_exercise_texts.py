"""The files of each exercise: what is generated is the solution's, and what a learner reads does not give it away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

from ep_lib.workshop import exercises, hidden
from ep_lib.workshop.course import generate
from ep_lib.workshop.exercises import Exercise

each_exercise = pytest.mark.parametrize(
    "exercise", [exercises.find(name) for name in exercises.names()], ids=exercises.names()
)


@each_exercise
def test_generated_files_match_the_solution(exercise: Exercise) -> None:
    drifted = generate.drifted(generate.generated(exercise))
    assert not drifted, f"edit solutions/, then run `python -m ep_lib.workshop.course.generate`; drifted: {drifted}"
    for piece in exercise.pieces:
        runs = (exercise.root / exercise.runs_as / piece).read_text("utf-8")
        solution = (exercise.solution_dir / piece).read_text("utf-8").splitlines()
        assert runs.splitlines() == [line for line in solution if " EXERCISE-" not in line], "the library runs it"


@each_exercise
def test_every_task_has_holes_and_hidden_and_public_tests(exercise: Exercise) -> None:
    numbers = {task.number for task in exercise.tasks}
    assert numbers == {hole.task for hole in exercise.holes}
    for public in (True, False):
        assert numbers == {test.task for test in hidden.load(exercise.name, public=public).behaviours}


@each_exercise
def test_points_in_the_text_are_those_that_are_given(exercise: Exercise) -> None:
    """In the files that learners fill in, each task's points once, however many holes it has; and in the README."""
    told: dict[int, set[str]] = {}
    for piece in exercise.pieces:
        text = (exercise.exercise_dir / piece).read_text()
        for at, points, together in re.findall(r"TASK (\d+[a-z]?) \((\d+) points( for [^)]+ together)?\)", text):
            number = int(at.rstrip("abcdefgh"))
            holes = [hole.at for hole in exercise.holes if hole.task == number]
            assert together == (f" for {' and '.join(holes)} together" if len(holes) > 1 else "")
            told.setdefault(number, set()).add(points)
    given = {task.number: {str(task.points)} for task in exercise.tasks}
    assert told == given
    rows = re.findall(r"^\| (\d+) \| .* \| (\d+) \|$", (exercise.exercise_dir / "README.md").read_text(), re.M)
    assert {int(number): {points} for number, points in rows} == given


@each_exercise
def test_the_readme_leads_to_the_kernels_and_not_to_the_answer(exercise: Exercise) -> None:
    text = (exercise.exercise_dir / "README.md").read_text()
    assert "solutions" not in text
    assert not any(f"{exercise.runs_as}/{piece}" in text for piece in exercise.pieces), "that is the answer"
    for path, include in re.findall(r'from_file\("([^"]+)", name(?:, include=\["([^"]+)"\])?\)', text):
        file = exercise.exercise_dir / Path(path).name if path.startswith("mine/") else ROOT / path
        assert "__global__" in file.read_text(), f"{path} has no kernel"
        assert not include or f"#include <{exercise.pieces[0]}>" in file.read_text()


@each_exercise
def test_a_hole_names_its_task_and_keeps_nothing_of_the_solution(exercise: Exercise) -> None:
    for piece in exercise.pieces:
        text = (exercise.exercise_dir / piece).read_text("utf-8")
        assert "EXERCISE-" not in text
        solution = (exercise.solution_dir / piece).read_text("utf-8")
        for at, body in re.findall(r"EXERCISE-BEGIN (\w+)\n(.*?)^ *(?://|#) EXERCISE-END", solution, re.S | re.M):
            hole = next(hole for hole in exercise.holes if hole.at == at)
            assert hole.given or f"Task {at} is still to do" in text
            assert body not in text


def test_the_tutorial_kernels_run_the_piece_of_exercise_01() -> None:
    text = (ROOT / "tutorial_kernels" / "01_write_signal.cu").read_text("utf-8")
    for function in ("write_and_signal_thread", "wait_for_signal", "write_and_signal_warp", "pipe_send_warp"):
        assert f"ep::{function}(" in text
    assert "#include <ep/write_signal.cuh>" in text

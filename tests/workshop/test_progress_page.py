"""The learner's progress page: what was solved, checked and graded, and what comes next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT

from ep_lib import workshop
from ep_lib.errors import GradingError
from ep_lib.jit import sealed
from ep_lib.workshop.course import progress, progress_page, puzzles
from ep_lib.workshop.course.course_map import STAGES
from ep_lib.workshop.exercises import Exercise, find, names
from ep_lib.workshop.grader.grading import Grade, TaskGrade, as_text, default_mine, start


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("solutions", "exercises", "ep_lib"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(tmp_path))
    monkeypatch.setattr(progress, "_unwritten", [])
    return tmp_path


def graded(exercise: Exercise, *passed: int, public: bool = False) -> Grade:
    tasks = tuple(TaskGrade(task, task.number in passed) for task in exercise.tasks)
    return Grade(exercise, default_mine(exercise), tasks, 1.0, public=public)


def test_a_new_learner_begins_at_the_beginning(root: Path) -> None:
    found = workshop.my_progress()
    assert found.points == 0 and len(found.stages) == len(STAGES)
    assert found.possible == sum(find(name).points for name in names())
    assert found.next == "Notebook 00, Start here: puzzle 00.1 is not solved yet."
    assert not any(stage.is_begun for stage in found.stages)


def test_it_goes_on_with_what_was_begun(root: Path) -> None:
    for number in ("00.1", "00.3"):
        progress.put(progress.PUZZLES, number, "lines")
    progress.put(progress.PREDICTIONS, "00.greet", "yes")
    assert workshop.my_progress().next.endswith("puzzle 00.2 is not solved yet.")
    assert "2 of 4 puzzles, 1 prediction made" in repr(workshop.my_progress())
    exercise = find("01")
    start("01")
    own = {each.exercise.name: each for each in workshop.my_progress().stages[1].exercises}
    assert own[exercise.name].words == "begun"
    progress_page.keep(graded(exercise, 1, 2, public=True))
    assert "01_write_signal: checked; not right yet: task 3, 4, 5" in repr(workshop.my_progress())
    progress_page.keep(graded(exercise, 1, 2, 3, 4, 5, public=True))
    progress_page.keep(graded(exercise, 1, 2, 3))
    assert workshop.my_progress().points == 6
    assert "6 of 12  01_write_signal: graded; not passed yet: task 4, 5" in repr(workshop.my_progress())


def test_points_stay_whatever_is_checked_later(root: Path) -> None:
    exercise = find("01")
    start("01")
    progress_page.keep(graded(exercise, 1, 2, public=True))
    of_a_terminal = {"exercises": {exercise.name: {"checked": [1, 2, 3], "points": 6, "passed": [1, 2, 3]}}}
    progress.file().write_text(json.dumps(of_a_terminal))
    assert workshop.my_progress().points == 6
    progress_page.keep(graded(exercise, 1, 2, 3, 4, 5, public=True))
    again = "right in the last check: task {} (`ep-lib grade` gives points)\n"
    assert f"6 of 12  01_write_signal: graded; {again.format('4, 5')}" in repr(workshop.my_progress())
    progress_page.keep(graded(exercise, 1, 2, 3, 5, public=True))
    assert f"graded; not passed yet: task 4; {again.format('5')}" in repr(workshop.my_progress())
    progress_page.keep(graded(exercise, 1))
    said = "graded; not passed yet: task 4, 5; points of an earlier version: not right any more: task 2, 3"
    assert f"6 of 12  01_write_signal: {said}" in repr(workshop.my_progress())
    progress_page.keep(graded(exercise, 1, 2, 3, 4, 5))
    assert "12 of 12  01_write_signal: graded\n" in repr(workshop.my_progress())


def test_all_of_it_done_is_said(root: Path) -> None:
    for notebook in puzzles.notebooks():
        for puzzle in puzzles.puzzles_of(notebook):
            progress.put(progress.PUZZLES, puzzle.number, "lines")
    for name in names():
        start(name)
        progress_page.keep(graded(find(name), *range(1, 20)))
    found = workshop.my_progress()
    assert found.points == found.possible and found.next.startswith("You have done all of it")


def test_without_a_grader_what_passes_the_checks_is_done(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "in_use", lambda: True)
    progress_page.keep(graded(find("01"), public=True))  # of the exercise's own files
    assert "01_write_signal: not begun" in repr(workshop.my_progress())
    start("01")
    progress_page.keep(graded(find("01"), *range(1, 6), public=True))
    said = repr(workshop.my_progress())
    assert said.startswith(f"1 of {len(names())} exercises pass all checks so far") and "grade" not in said
    assert "worth 12 points  01_write_signal: all checks pass: hand in mine/01_write_signal for points\n" in said
    assert "Hand in mine/01_write_signal: " in as_text(graded(find("01"), *range(1, 6), public=True))


def test_only_the_learners_own_whole_gradings_are_kept(root: Path) -> None:
    exercise = find("01")
    start("01")
    whole = graded(exercise, 1)
    progress_page.keep(Grade(exercise, exercise.solution_dir, whole.tasks, 1.0))
    progress_page.keep(Grade(exercise, default_mine(exercise), whole.tasks[:1], 1.0))
    assert progress.all_of(progress.EXERCISES) == {}
    progress.put(progress.EXERCISES, exercise.name, "edited by hand")
    assert workshop.my_progress().points == 0


def test_the_page_is_written_and_escaped(root: Path, tmp_path: Path) -> None:
    start("01")
    progress_page.keep(graded(find("01"), 1, 2))
    page = workshop.my_progress().save(tmp_path / "progress.html").read_text()
    assert "Your progress" in page and "<script" not in page and "01_write_signal" in page
    (tmp_path / "file").write_text("")
    with pytest.raises(GradingError, match="cannot be written"):
        workshop.my_progress().save(tmp_path / "file" / "progress.html")

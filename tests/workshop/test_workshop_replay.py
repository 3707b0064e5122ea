"""``workshop.replay``: the failing run of a task, step by step, and nothing of the test's code in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grader_answers import submission

from ep_lib import workshop
from ep_lib.errors import ArgumentError, GradingError
from ep_lib.workshop.course.replaying import page_of_grade
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import grade

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]

EXERCISE = find("01")


def test_the_failing_run_is_shown_without_the_tests_code(tmp_path: Path) -> None:
    submission(EXERCISE, "wrong_relaxed_signal", tmp_path)
    result = grade("01", tmp_path, public=True, tasks=(1,))
    page = workshop.replay("01", 1, result.seed, tmp_path, public=True).html
    assert "put_thread(target, source, bytes, peer);" in page and "a line of the test" in page
    source = (Path(workshop.__file__).parent / "hidden" / "ex01_write_signal.cu").read_text()
    own = (tmp_path / EXERCISE.pieces[0]).read_text()
    telling = [line.strip() for line in source.splitlines() if len(line.strip()) > 30 and line.strip() not in own]
    assert telling and not [line for line in telling if line in page]
    assert '"name":"ep/write_signal.cuh"' in page and "mine/ep/" not in page and f"task 1, seed {result.seed}," in page
    assert "/hidden/" not in page and str(tmp_path) not in page and "canary" not in page


@pytest.mark.extended
def test_of_all_schedules_one_that_is_wrong_is_shown(tmp_path: Path) -> None:
    board = find("01_board")
    submission(board, "wrong_acquire_for_the_second_look", tmp_path)
    result = grade(board.name, tmp_path, seed=1, tasks=(3,))
    assert "all schedules" in result.tasks[0].message
    page = page_of_grade(result).html
    assert "this is a run of which the test's message tells" in page and "weak memory" in page


def test_what_cannot_be_replayed_is_said(tmp_path: Path) -> None:
    python = find("01_all_to_all")
    with pytest.raises(GradingError, match="no run of a kernel to look at"):
        workshop.replay(python.name, 1, 5, python.exercise_dir, public=True)
    with pytest.raises(GradingError, match="task 1 of 01_all_to_all passes with seed 5"):
        workshop.replay(python.name, 1, 5, python.solution_dir, public=True)
    with pytest.raises(GradingError, match="no task 9"):
        workshop.replay("01", 9, 5, tmp_path)
    with pytest.raises(ArgumentError, match="seed"):
        workshop.replay("01", 1, "five", tmp_path)  # type: ignore[arg-type]


@pytest.mark.extended
def test_the_shown_run_stays_behind_the_walls(tmp_path: Path) -> None:
    """Where a piece that was changed after it was graded touches a file outside."""
    mine, outside = tmp_path / "mine", tmp_path / "outside"
    submission(EXERCISE, "wrong_relaxed_signal", mine)
    result = grade("01", mine, public=True, tasks=(1,))
    piece = mine / EXERCISE.pieces[0]
    touching = f'#pragma once\n#include <sys/stat.h>\ninline void touch() {{ mkdir("{outside}", 0700); }}\n'
    call = "put_thread(target, source, bytes, peer);"
    text = piece.read_text()
    assert call in text
    piece.write_text(text.replace("#pragma once\n", touching).replace(call, f"touch(); {call}"))
    with pytest.raises(GradingError, match=r"mkdir\(\), which kernels do not have"):
        page_of_grade(result)
    assert not outside.exists()

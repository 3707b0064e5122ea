"""Answers to exercise 01, right and wrong, graded end to end: each loses the points of what is wrong, no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grader_answers import FOLDER, submission

from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader import Grade, grade
from ep_lib.workshop.sandbox import Limits

pytestmark = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler")

EXERCISE = find("01")

# answer -> (tasks that fail, what the first failing task's message must say)
WRONG = {
    "wrong_signal_first": ({1}, "had not arrived: which comes first"),
    "wrong_no_syncwarp": ({3, 4, 5}, "is there a __syncwarp()"),  # 5: the solution's pipe stands on task 3
    "wrong_sets_the_signal": ({1}, "instead of growing by it"),
    "wrong_size": ({3, 5}, "bytes of the message are wrong"),
    "wrong_peer": ({1}, "bytes of the message are wrong"),
    "wrong_waits_for_equal": ({2}, "PeerTimeout"),
    "wrong_endless_loop": ({2}, "KernelTimeout"),
    "wrong_null_write": ({1}, "a null pointer"),
    "wrong_no_credit": ({5}, "received bytes are wrong|rounds ahead"),
    "wrong_early_credit": ({5}, "credit before reuse|received bytes are wrong"),
    "wrong_forges_results": ({1, 2, 3, 4, 5}, "something else than the runner wrote"),
    "wrong_exits": ({1, 2, 3, 4, 5}, "ended the whole process with exit code 0"),
    "wrong_fork_bomb": ({1}, "more than 32 processes"),
    "wrong_memory_hog": ({3, 5}, "MiB of memory"),
    "wrong_relaxed_signal": ({1, 4}, "stored without release"),
    "wrong_volatile_wait": ({2}, "loaded without acquire"),
    "wrong_gpu_scope": ({3, 5}, "a scope that includes the other rank"),
    "wrong_fence_before_barrier": ({3, 5}, "comes after the barrier"),
    "wrong_lane_waits": ({5}, "missing __syncwarp"),
    "wrong_blinds_the_checker": ({1, 2, 3, 4, 5}, "the checker was switched off"),
    "wrong_syntax": ({1, 2, 3, 4, 5}, "KernelCompileError"),
}
RIGHT = ["right_by_hand", "right_one_way_or_another"]


def graded(answer: str, folder: Path) -> Grade:
    # half the usual memory: a busy machine needs long to fill it
    return grade("01", submission(EXERCISE, answer, folder), limits=Limits(resident_bytes=1 << 30))


def test_every_answer_file_is_graded_here() -> None:
    assert {path.stem for path in (FOLDER / EXERCISE.name).glob("*.cuh")} == {*WRONG, *RIGHT}


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_answer_loses_the_points_of_what_is_wrong(answer: str, tmp_path: Path) -> None:
    tasks, says = WRONG[answer]
    result = graded(answer, tmp_path)
    assert {each.task.number for each in result.tasks if not each.passed} == tasks, result.as_json()
    assert result.points == sum(task.points for task in EXERCISE.tasks if task.number not in tasks)
    first = next(each for each in result.tasks if not each.passed)
    assert_says(first.message, says)
    assert str(tmp_path.parent) not in first.message
    assert result.seconds < 30


def assert_says(message: str, says: str) -> None:
    assert any(part in message for part in says.split("|")), message


@pytest.mark.parametrize("answer", RIGHT)
def test_a_right_answer_gets_full_marks_however_it_is_written(answer: str, tmp_path: Path) -> None:
    result = graded(answer, tmp_path)
    assert result.full, result.as_json()


def test_the_solution_gets_full_marks() -> None:
    result = grade("01", EXERCISE.solution_dir)
    assert result.full, result.as_json()
    assert result.seconds < 30


def test_the_exercise_as_shipped_gets_nothing_and_names_every_task() -> None:
    result = grade("01", EXERCISE.exercise_dir)
    assert result.points == 0
    for each in result.tasks:
        assert each.unfinished
        assert each.message.startswith(f"Task {each.task.number}")


def test_a_half_finished_exercise_gets_the_points_of_the_finished_half(tmp_path: Path) -> None:
    piece = EXERCISE.pieces[0]
    target = submission(EXERCISE, "right_by_hand", tmp_path) / piece
    holes = (EXERCISE.exercise_dir / piece).read_text("utf-8")
    # the finished file up to task 3, the file with the holes from there on
    at = "// As write_and_signal_thread, by the 32 lanes"
    target.write_text(target.read_text("utf-8").split(at)[0] + at + holes.split(at)[1], "utf-8")
    result = grade("01", tmp_path)
    assert [each.passed for each in result.tasks] == [True, True, False, False, False]
    assert all(each.unfinished for each in result.tasks[2:])

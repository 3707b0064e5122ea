"""``ep-lib grade`` and ``workshop.check``: exit codes, JSON, CSV, and what a person reads."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from grader_answers import submission

from ep_lib import workshop
from ep_lib.cli import main
from ep_lib.errors import GradingError, KernelCompileError
from ep_lib.workshop.classroom import marking
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import Grade, TaskGrade, as_text, grade

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]

EXERCISE = find("01")
TASK_KEYS = {"task", "title", "points", "of", "passed", "failed_behaviour", "message", "timed_out", "used_cpu"}
KEYS = {"flags", "not_enforced", "schema", "exercise", "mine", "points", "of", "full", "seconds", "seed", "problem"}
KEYS |= {"tasks"}


def test_json_of_an_unfinished_exercise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "01", "--mine", str(EXERCISE.exercise_dir), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert set(record) == KEYS
    assert (record["schema"], record["exercise"], record["points"], record["full"]) == (1, EXERCISE.name, 0, False)
    assert record["of"] == EXERCISE.points == sum(each["of"] for each in record["tasks"])
    assert all(set(each) == TASK_KEYS for each in record["tasks"])


@pytest.mark.extended
def test_full_marks_end_with_0_and_several_submissions_with_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grade", "1", "--mine", str(EXERCISE.solution_dir)]) == 0
    assert "12 of 12 points" in capsys.readouterr().out
    shutil.copytree(EXERCISE.exercise_dir, tmp_path / "ada" / "one_folder_too_many")
    shutil.copytree(EXERCISE.exercise_dir, tmp_path / "bob")
    (tmp_path / "eve").mkdir()
    assert main(["grade", "01", "--all", str(tmp_path), "--csv"]) == 2  # eve handed in nothing
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["learner"] for row in rows] == ["ada", "bob", "eve"]
    assert [row["points"] for row in rows] == ["0", "0", ""]
    assert "no file ep/write_signal.cuh" in rows[2]["problem"]
    args = ["grade", "01", "--mine", str(tmp_path / "bob"), "--mine", str(tmp_path / "eve"), "--json"]
    assert main(args) == 2
    assert [set(each) >= {"schema", "exercise", "mine"} for each in json.loads(capsys.readouterr().out)] == [True] * 2


def test_any_submission_is_one_row_and_the_next_one_is_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piece = EXERCISE.pieces[0]
    for name, answer in (("a_syntax", "wrong_syntax"), ("b_equal", "wrong_waits_for_equal"), ("c_ends", "wrong_exits")):
        submission(EXERCISE, answer, tmp_path / name)
    answer = (tmp_path / "a_syntax" / piece).read_text()
    (tmp_path / "a_syntax" / piece).write_text(answer.replace("\n}\n", "\n", 1))
    for name in ("d_noise", "e_folder", "f_link", "g_\x1b[2J\n", "h_\udcff", "z_unfinished"):
        (tmp_path / name / piece).parent.mkdir(parents=True)
    (tmp_path / "d_noise" / piece).write_bytes(b"\xff\x00\xfe" * 999)
    (tmp_path / "e_folder" / piece).mkdir()
    (tmp_path / "f_link" / piece).symlink_to(tmp_path / "f_link" / piece)
    shutil.copyfile(EXERCISE.exercise_dir / piece, tmp_path / "z_unfinished" / piece)
    assert main(["grade", "01", "--all", str(tmp_path), "--csv", "--jobs", "2"]) == 2
    text = capsys.readouterr().out
    assert "\x1b" not in text
    rows = {row["learner"]: row for row in csv.DictReader(io.StringIO(text))}
    assert [name[0] for name in rows] == list("abcdefghz")
    points = {name[0]: row["points"] for name, row in rows.items()}
    assert [points[letter] for letter in "acdz"] == ["0"] * 4 and [points[letter] for letter in "efgh"] == [""] * 4
    assert rows["b_equal"]["task 2"] == "0" and rows["b_equal"]["task 1"] != "0"
    assert not rows["z_unfinished"]["problem"]
    opened = answer[: answer.index("{", answer.index("write_and_signal_thread(void"))].count("\n") + 1
    said = rows["a_syntax"]["problem"]
    assert f"KernelCompileError: {piece}:{opened}: error: this '{{' is never closed" in said and "stopped at" in said


@pytest.mark.parametrize("error", [KernelCompileError("no room left for objects"), PermissionError(13, "not yours")])
def test_a_grader_that_fails_for_one_submission_goes_on_with_the_next(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = marking.grade

    def fails_for_ada(name: str, folder: Path, **options: Any) -> Grade:
        if b"// ada" in (folder / EXERCISE.pieces[0]).read_bytes():
            raise error
        return real(name, folder, **options)

    monkeypatch.setattr(marking, "grade", fails_for_ada)
    for name in ("ada", "bob"):
        shutil.copytree(EXERCISE.exercise_dir, tmp_path / name)
        with (tmp_path / name / EXERCISE.pieces[0]).open("a") as piece:
            piece.write(f"// {name}\n")
    assert main(["grade", "01", "--all", str(tmp_path), "--json"]) == 2
    ada, bob = json.loads(capsys.readouterr().out)
    assert str(error) in ada["error"] and bob["points"] == 0


def test_a_grader_without_a_compiler_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EP_LIB_CXX", str(tmp_path / "no-such-compiler"))
    for name in ("ada", "bob"):
        shutil.copytree(EXERCISE.exercise_dir, tmp_path / name)
    assert main(["grade", "01", "--all", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "no-such-compiler" in said.err and said.err.count("ep-lib grade:") == 1


@pytest.mark.parametrize(
    "arguments", [["77"], ["01", "--mine", "/proc/self/no-such/folder"], ["01", "--all", "/proc/self/no-such/folder"]]
)
def test_what_the_grader_cannot_do_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ep-lib grade: no ")


def test_without_an_exercise_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade"]) == 0
    assert "01_write_signal: Write, then signal\n" in capsys.readouterr().out


def test_a_compile_error_names_the_learners_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "01", "--mine", str(submission(EXERCISE, "wrong_syntax", tmp_path))]) == 1
    text = capsys.readouterr().out
    assert "Nothing could be graded" in text
    assert "ep/write_signal.cuh:" in text


def test_tests_that_do_not_compile_are_no_submissions_fault(tmp_path: Path) -> None:
    exercise = find("00_first_kernel")
    shutil.copytree(Path(workshop.__file__).parent / "hidden", tmp_path / "hidden")
    with (tmp_path / "hidden" / f"ex{exercise.name}.cu").open("a") as tests:
        tests.write("no such thing\n")
    with pytest.raises(KernelCompileError, match="no such thing"):
        grade(exercise.name, exercise.solution_dir, tests=tmp_path / "hidden")


def test_a_piece_that_is_too_large_or_no_file_is_refused(tmp_path: Path) -> None:
    piece = tmp_path / EXERCISE.pieces[0]
    piece.parent.mkdir()
    piece.write_bytes(b"/" * (2 << 20))
    with pytest.raises(GradingError, match="2097152 bytes"):
        grade("01", tmp_path)
    piece.unlink()
    piece.mkdir()
    with pytest.raises(GradingError, match="no file"):
        grade("01", tmp_path)


def test_bytes_that_are_no_text_are_a_wrong_answer_not_a_crash(tmp_path: Path) -> None:
    piece = tmp_path / EXERCISE.pieces[0]
    piece.parent.mkdir()
    piece.write_bytes(b'\xff\x00\xfe#include "\x80"\n')
    result = grade("01", tmp_path)
    assert result.points == 0
    assert result.problem


def test_the_public_check_prints_and_tells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert workshop.check("01", f"solutions/{EXERCISE.name}")
    assert "5 of 5 tasks pass the public checks" in capsys.readouterr().out
    result = workshop.check("01", submission(EXERCISE, "wrong_sets_the_signal", tmp_path))
    assert not result
    assert repr(result) == "<Grade 01_write_signal: 4 of 5 tasks pass the public checks>"
    text = capsys.readouterr().out
    assert "--  task 1" in text
    assert "the signal was set to 1 instead of growing by it" in text


def test_what_failed_is_a_run_to_go_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submission(EXERCISE, "wrong_no_syncwarp", tmp_path / "own")
    failed = workshop.check("01", tmp_path / "own")
    assert "To see task 3 fail, step by step: workshop.watch()" in capsys.readouterr().out
    page = workshop.watch().html
    assert "01_write_signal, task 3, seed " in page and "race: rank 1 reads what rank 0 writes" in page
    assert "put_warp(target, source, bytes, peer)" in page and "a line of the test: " in page
    assert "canary" not in page and "hidden/grader" not in page
    monkeypatch.setattr("ep_lib.commands.grade.grade", lambda *_, **__: failed)
    command = ["grade", "01", "--mine", str(tmp_path / "own")]
    assert main(command) == 1
    assert f"ep-lib {' '.join(command)} --html replay.html" in capsys.readouterr().out
    assert main([*command, "--html", str(tmp_path / "run.html")]) == 1
    assert "task 3. Open it in a browser" in capsys.readouterr().out and "task 3" in (tmp_path / "run.html").read_text()
    assert main(["grade", "01", "--html", "run.html", "--json"]) == 2
    assert "leave out --json" in capsys.readouterr().err


def test_what_the_learners_code_prints_cannot_steer_the_terminal() -> None:
    tasks = tuple(TaskGrade(task, False, "b", "\x1b[2J gone") for task in EXERCISE.tasks)
    assert "\x1b" not in as_text(Grade(EXERCISE, Path("x"), tasks, 1.0, output="\x1b]0;title\x07\x00"))


def test_what_the_learners_code_prints_again_and_again_is_shown_once() -> None:
    tasks = tuple(TaskGrade(task, False, "b", "wrong") for task in EXERCISE.tasks)
    printed = "hello\n" + 7 * "a.cuh:4: a warning\n  its line\n" + "hello\n"
    text = as_text(Grade(EXERCISE, Path("x"), tasks, 1.0, output=printed))
    assert "hello\na.cuh:4: a warning\n  its line\n(7 times)\nhello\n" in text

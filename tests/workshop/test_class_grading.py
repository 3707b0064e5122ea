"""Grading a class: what is left to do, time-outs, interrupts, who is like whom. Most of it with a stand-in grader."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from grader_answers import of_kind, submission

from ep_lib import processes
from ep_lib.cli import main
from ep_lib.commands import grade as grade_command
from ep_lib.errors import GradingError
from ep_lib.workshop.classroom import class_grading, marking, similar
from ep_lib.workshop.classroom.class_grading import collect, grade_class, left_to_do
from ep_lib.workshop.classroom.gradebook import Book, HandedIn
from ep_lib.workshop.classroom.gradebook_views import standings_of, write_all
from ep_lib.workshop.classroom.handed_in import MAX_NOTEBOOK_BYTES
from ep_lib.workshop.classroom.marking import Job, Result
from ep_lib.workshop.course.puzzles import graded
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader.grading import Grade

EXERCISE = find("01")
PIECE = EXERCISE.pieces[0]
SOLUTION = (EXERCISE.solution_dir / PIECE).read_bytes()
has_compiler = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler")


def handed_in(folder: Path, **pieces: str) -> Path:
    for learner, text in pieces.items():
        path = folder / learner / PIECE
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


def task(number: int, points: int, *, timed_out: bool = False, used_cpu: bool = False) -> dict[str, Any]:
    about = {"task": number, "title": "t", "of": 2, "failed_behaviour": None, "message": None}
    return {**about, "points": points, "passed": points == 2, "timed_out": timed_out or used_cpu, "used_cpu": used_cpu}


def result(job: Job, *tasks: dict[str, Any]) -> Result:
    points = sum(each["points"] for each in tasks)
    record = {"seconds": 1.0, "seed": job.seed, "problem": None, "flags": [], "mine": job.source, "tasks": list(tasks)}
    return Result(job, {**record, "points": points, "of": 4, "full": points == 4})


def by_its_comment(job: Job) -> Result:
    """Points as the file says: "// 2 0"."""
    points = map(int, job.files[PIECE].decode().split()[1:3])
    return result(job, *(task(number, each) for number, each in enumerate(points, 1)))


def graded_by(work: Callable[[Job], Result], book: Book, place: Path, **options: Any) -> list[str]:
    found = collect(place, [EXERCISE], puzzles=False)
    entries = left_to_do(book, found, options.get("regrade", ()))
    book.hand_in(each.handed_in for each in found)
    with ThreadPoolExecutor(2) as pool:
        return sorted(each.job.learner for each in grade_class(book, entries, pool, 2, work=work, **options))


def points_of(book: Book) -> dict[str, float | None]:
    return {each.learner: each.points for each in book.standings()}


def test_each_submission_is_graded_once_and_again_when_it_changes(tmp_path: Path) -> None:
    place = handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 0")
    (place / "eve").mkdir()
    with Book(tmp_path / "class.db") as book:
        assert graded_by(by_its_comment, book, place) == ["ada", "bob", "eve"]
        assert points_of(book) == {"ada": 4, "bob": 2, "eve": None}
        assert graded_by(by_its_comment, book, place) == ["eve"]  # perhaps she has handed it in by now
        (place / "bob" / PIECE).write_text("// 2 2")
        assert graded_by(by_its_comment, book, place) == ["bob", "eve"]
        assert points_of(book) == {"ada": 4, "bob": 4, "eve": None}
        assert [each.attempts for each in book.standings()] == [1, 2, 1]


def test_what_is_handed_in_again_counts_though_graded_before_another(tmp_path: Path) -> None:
    place = handed_in(tmp_path / "in", ada="// 2 2")
    with Book(tmp_path / "class.db") as book:
        for text, graded, points in (("// 2 2", ["ada"], 4), ("// 2 0", ["ada"], 2), ("// 2 2", [], 4)):
            (place / "ada" / PIECE).write_text(text)
            assert graded_by(by_its_comment, book, place) == graded
            assert points_of(book) == {"ada": points}
        (place / "ada" / "again" / PIECE).parent.mkdir(parents=True)
        (place / "ada" / "again" / PIECE).write_text("// 0 0")  # two that may be meant
        graded_by(by_its_comment, book, place)
        (found,) = book.standings()
        assert found.points == 4 and "a later one was not graded" in found.flags[-1]
        shutil.rmtree(place / "ada" / "again")
        graded_by(by_its_comment, book, place)
        (found,) = book.standings()
        assert (found.points, found.flags, found.attempts) == (4, (), 3)


def test_what_is_only_begun_is_not_handed_in_with_the_rest(tmp_path: Path) -> None:
    begun = find("06_slots")
    for exercise, source in ((EXERCISE, EXERCISE.solution_dir), (begun, begun.exercise_dir)):
        for piece in exercise.pieces:
            (to := tmp_path / "ada" / "mine" / exercise.name / piece).parent.mkdir(parents=True)
            shutil.copy(source / piece, to)
    assert [each.job.exercise for each in collect(tmp_path, [EXERCISE, begun], puzzles=False)] == [EXERCISE.name]
    assert [each.job.exercise for each in collect(tmp_path, [begun], puzzles=False)] == [begun.name]  # asked for


def test_that_nothing_came_is_forgotten_when_something_has(tmp_path: Path) -> None:
    place = tmp_path / "in"
    archive = place / "ada.zip"
    place.mkdir()
    with Book(tmp_path / "class.db") as book:
        for _ in range(2):  # also if the files are the same as before
            archive.write_bytes(b"no zip")
            found = collect(place, [EXERCISE, find("10_plan")], puzzles=False)
            book.hand_in(each.handed_in for each in found)
            list(grade_class(book, found, ThreadPoolExecutor(1), 1))
            assert [each.problem for each in book.standings() if not each.exercise] != []
            with zipfile.ZipFile(archive, "w") as file:
                file.writestr(PIECE, "// 2 2")
            graded_by(by_its_comment, book, place)
            assert [(each.exercise, each.points) for each in book.standings()] == [(EXERCISE.name, 4)]


def test_what_no_wall_kept_out_and_what_was_refused_are_flags(tmp_path: Path) -> None:
    def without_walls(job: Job) -> Result:
        found = by_its_comment(job)
        return dataclasses.replace(found, record={**found.record, "flags": ["x"], "not_enforced": ["no Landlock"]})

    place = handed_in(tmp_path / "in", ada="// 2 2")
    (place / "ada" / "broken.zip").write_bytes(b"PK")
    with Book() as book:
        graded_by(without_walls, book, place)
        (found,) = book.standings()
        assert (
            found.flags[0] == "x" and found.not_enforced == ("no Landlock",) and "cannot be unpacked" in found.flags[1]
        )


def test_regrading_is_for_those_who_are_named(tmp_path: Path) -> None:
    place = handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 0")
    with Book() as book:
        graded_by(by_its_comment, book, place)
        assert graded_by(by_its_comment, book, place, regrade=["bob"]) == ["bob"]
        assert graded_by(by_its_comment, book, place, regrade=["all"]) == ["ada", "bob"]
        assert [each.attempts for each in book.standings()] == [2, 3]
        with pytest.raises(GradingError, match=r"nothing was handed in by 'Bob'; by these it was: ada, bob"):
            graded_by(by_its_comment, book, place, regrade=["Bob"])


def test_what_another_grader_does_meanwhile_is_left_out(tmp_path: Path) -> None:
    place = handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 0", cy="// 0 0")
    with Book(tmp_path / "class.db") as book:
        entries = left_to_do(book, collect(place, [EXERCISE], puzzles=False))
        with Book(tmp_path / "class.db") as other:
            graded_by(by_its_comment, other, place)
        with ThreadPoolExecutor(1) as pool:
            assert list(grade_class(book, entries, pool, 1, work=by_its_comment)) == []
        assert [each.attempts for each in book.standings()] == [1, 1, 1]


def test_a_time_out_is_tried_again_alone_and_only_its_task(tmp_path: Path) -> None:
    asked: list[tuple[int, ...]] = []

    def slow_at_first(job: Job) -> Result:
        asked.append(job.tasks)
        if job.tasks:
            return result(job, task(2, 2))
        return result(job, task(1, 2), task(2, 0, timed_out=True))

    with Book() as book:
        graded_by(slow_at_first, book, handed_in(tmp_path / "in", ada="// x"))
        assert asked == [(), (2,)]
        assert points_of(book) == {"ada": 4}


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_used_up_its_cpu_time_is_tried_once_if_the_solution_passes(tmp_path: Path, is_slow: bool) -> None:
    asked: list[tuple[bool, tuple[int, ...]]] = []

    def loops(job: Job) -> Result:
        is_solution = job.files[PIECE] == SOLUTION
        asked.append((is_solution, job.tasks))
        if is_solution:
            return result(job, task(2, 0, used_cpu=True) if is_slow else task(2, 2))
        return result(job, *([] if job.tasks else [task(1, 2)]), task(2, 0, used_cpu=True))

    with Book() as book:
        graded_by(loops, book, handed_in(tmp_path / "in", ada="// x"))
        (found,) = book.standings()
        assert (found.points, found.problem) == ((None, marking.TOO_BUSY) if is_slow else (2, ""))
        assert asked == [(False, ()), (True, (2,)), *([(False, (2,)), (True, (2,))] if is_slow else [])]


def test_what_never_ends_waits_for_those_that_do() -> None:
    jobs = [
        class_grading.Entry(Job(learner, f"puzzles_{number:02}", {"x": b""}))
        for number in range(9)
        for learner in ("eve", *(f"learner{n}" for n in range(6)))
    ]
    slow = {"eve"}
    with Book() as book:
        order = [each.learner for each in class_grading._supply(book, jobs, ["all"], lambda exercise: None, slow)]
    assert order[-9:] == ["eve"] * 9 and "eve" not in order[:-9]


@pytest.mark.parametrize("is_busy", [False, True])
def test_two_time_outs_are_the_machines_if_the_solution_has_them(tmp_path: Path, is_busy: bool) -> None:
    def hangs(job: Job) -> Result:
        if job.files[PIECE] == SOLUTION:
            return result(job, task(1, 2, timed_out=is_busy))
        return result(job, task(1, 0, timed_out=True), *([] if job.tasks else [task(2, 2)]))

    with Book() as book:
        graded_by(hangs, book, handed_in(tmp_path / "in", ada="// x"))
        (found,) = book.standings()
        assert found.points == (None if is_busy else 2)
        assert found.problem == (marking.TOO_BUSY if is_busy else "")


@pytest.mark.parametrize("broken", ["error", "fails"])
def test_what_the_solution_cannot_do_here_either_is_not_graded(tmp_path: Path, broken: str) -> None:
    def no_disk(job: Job) -> Result:
        if job.files[PIECE] != SOLUTION:
            return result(job, task(1, 0, timed_out=True))
        return marking.not_graded(job, "no disk") if broken == "error" else result(job, task(1, 0))

    with Book() as book:
        place = handed_in(tmp_path / "in", ada="// x")
        graded_by(no_disk, book, place)
        (found,) = book.standings()
        assert (found.points, found.problem) == (None, marking.TOO_BUSY)
        assert graded_by(by_its_comment, book, handed_in(tmp_path / "again", ada="// 2 2")) == ["ada"]
        assert points_of(book) == {"ada": 4}


def test_changed_limits_of_the_grader_grade_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("ada", EXERCISE.name, {PIECE: SOLUTION})
    marking._limits_at_first()
    monkeypatch.setattr(marking, "limits_of", lambda pid: {0: (1, 1)})
    assert marking.work(job).record["error"] == marking.LIMITS_CHANGED


def test_a_learner_called_like_a_file_of_the_views_has_a_folder(tmp_path: Path) -> None:
    names = ["grades.json", "overview.html", "Totals.CSV", "ada"]
    with Book() as book:
        graded_by(by_its_comment, book, handed_in(tmp_path / "in", **dict.fromkeys(names, "// 2 2")))
        write_all(standings_of(book), tmp_path / "out")
    found = [path.parent.name for path in (tmp_path / "out").glob("*/feedback.html")]
    assert len(found) == 4 and "ada" in found
    assert all((tmp_path / "out" / name).is_file() for name in ("grades.json", "overview.html", "totals.csv"))


def test_what_was_graded_before_an_interrupt_stays(tmp_path: Path) -> None:
    place = handed_in(tmp_path / "in", **{f"learner{number}": "// 2 2" for number in range(20)})
    with Book(tmp_path / "class.db") as book:
        entries = left_to_do(book, collect(place, [EXERCISE], puzzles=False))
        with closing(grade_class(book, entries, ThreadPoolExecutor(2), 2, work=by_its_comment)) as results:
            next(results), next(results)
        assert len(book.standings()) == 2
        assert len(left_to_do(book, entries)) == 18
        assert len(graded_by(by_its_comment, book, place)) == 18


def test_jobs_and_results_travel() -> None:
    job = Job("ada", "01_write_signal", {PIECE: b"// x"}, source="s", submitted="t")
    assert pickle.loads(pickle.dumps(job)) == job and pickle.loads(pickle.dumps(marking.work)) is marking.work
    assert pickle.loads(pickle.dumps(result(job, task(1, 2)))).record["points"] == 2
    assert job.digest == dataclasses.replace(job, learner="bob", seed=1).digest


def test_what_the_grader_cannot_do_is_said_and_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*words: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(marking, "grade", fails)
    record = marking.work(Job("ada", EXERCISE.name, {PIECE: b"// x"})).record
    assert "No space left" in record["error"] and "points" not in record


def test_nothing_is_graded_by_a_library_that_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "ring.cuh"
    header.write_text("// before")

    def pulls(*words: Any, **options: Any) -> Grade:
        header.write_text("// what came with git pull")
        return Grade(EXERCISE, tmp_path, (), 0.0)

    monkeypatch.setattr(marking, "_PACKAGE", tmp_path)
    monkeypatch.setattr(marking, "_first_seen", functools.cache(marking._files))
    monkeypatch.setattr(marking, "grade", pulls)
    for _ in range(2):
        record = marking.work(Job("ada", EXERCISE.name, {PIECE: b"// x"})).record
        assert record["error"] == marking.CHANGED and "points" not in record


# ---- notebooks -------------------------------------------------------------------------------------------------------
def notebook(**answers: str) -> str:
    cells = [{"cell_type": "code", "source": [f"%%puzzle {number}\n", lines]} for number, lines in answers.items()]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "text"}, *cells], "nbformat": 4})


def test_answers_to_puzzles_are_found_in_notebooks(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "bob").mkdir()
    answers = {
        "00.1": "*ep::peer_ptr(box, peer) = 100 + me;",
        "00.2": "// TODO: your lines",
        "99.1": "x",
        "01.2": "// x",
    }
    (tmp_path / "ada" / "00_start_here.ipynb").write_text(notebook(**answers))
    (tmp_path / "bob" / "00_start_here.ipynb").write_text("{not json")
    ada, bob = collect(tmp_path, [], puzzles=True)
    assert ada.job.exercise == "puzzles_00" and set(ada.job.files) == {"00.1"}
    assert "it is no notebook" in bob.problem and "nothing is answered" not in bob.problem
    assert bob.job.exercise == "puzzles_00" and bob.flags
    (tmp_path / "bob" / PIECE).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "bob" / PIECE).write_text("// one")
    (tmp_path / "bob" / "00_copy.ipynb").write_bytes(b" " * (MAX_NOTEBOOK_BYTES + 1))
    ada, piece, bob = collect(tmp_path, [EXERCISE], puzzles=True)
    assert piece.job.exercise == EXERCISE.name and not piece.problem
    assert len(bob.flags) == 2 and all("16777217 bytes" in each or "no notebook" in each for each in bob.flags)
    assert piece.flags == bob.flags and bob.problem in bob.flags
    (tmp_path / "bob" / "00_copy.ipynb").write_text(notebook(**{"00.1": answers["00.1"]}))
    bob = collect(tmp_path, [], puzzles=True)[1]
    assert not bob.problem and set(bob.job.files) == {"00.1"} and "it is no notebook" in bob.flags[0]
    (tmp_path / "bob" / "00_copy.ipynb").write_text(notebook(**{"00.1": 20_000 * "("}))
    bob = collect(tmp_path, [], puzzles=True)[1]
    assert bob.problem == "puzzle 00.1 has 20000 bytes; an answer has at most 16384"
    (tmp_path / "bob" / "00_copy.ipynb").unlink()
    (tmp_path / "bob" / PIECE).unlink()
    (tmp_path / "bob" / "00_start_here.ipynb").write_text(notebook(**{"00.2": answers["00.2"]}))
    bob = collect(tmp_path, [], puzzles=True)[1]
    assert bob.problem.endswith("/bob: nothing is answered in 00_start_here.ipynb")
    (tmp_path / "ada" / "puzzles.ipynb").write_text(notebook(**{"00.1": "something else;"}))
    ada = collect(tmp_path, [], puzzles=True)[0]
    assert not ada.problem and ada.job.files["00.1"] == answers["00.1"].encode(), "the notebook comes before the page"
    (tmp_path / "ada" / "puzzles.ipynb").unlink()
    (tmp_path / "ada" / "copy.ipynb").write_text(notebook(**{"00.1": "something else;"}))
    ada, bob = collect(tmp_path, [], puzzles=True)
    assert ada.problem == "puzzle 00.1 is answered in 00_start_here.ipynb and in copy.ipynb; hand in one of them"


@pytest.mark.slow
@has_compiler
def test_puzzles_are_graded_behind_the_walls() -> None:
    answers = {"00.1": graded.solutions("puzzles_00")["00.1"], "00.2": b"list[me] = 7;"}
    found = graded.grade("puzzles_00", answers, tasks=(1, 2, 3))
    assert [each.points for each in found.tasks] == [1, 0, 0]
    assert "Not right yet" in found.tasks[1].message and found.tasks[2].unfinished


# ---- who is like whom ------------------------------------------------------------------------------------------------
OWN = """
// my very own way of doing it
__device__ inline int twice_the_sum(const int* values, int many) {
    int total = 0, extra = 1;
    for (int where = 0; where < many; where += extra) { total += values[where] * 2; if (total > 77) extra = 1; }
    return total;
}
__device__ inline void store_all(int* target, int many) {
    while (many-- > 0) { target[many] = twice_the_sum(target, many) ^ 0x5a; }
}
"""


def test_renamed_and_rearranged_code_is_alike() -> None:
    def marks(text: str) -> frozenset[int]:
        return similar.marks_of(EXERCISE.name, {PIECE: text.encode()})

    first = OWN.replace("twice_the_sum", "helper").replace("total", "s").replace("where", "i")
    parts = first.split("__device__ inline void")
    second = f"__device__ inline void{parts[1]}{parts[0]}".replace("    ", "\t")
    assert similar._alike(marks(OWN), marks(second))
    assert similar._alike(marks(OWN), marks("\n".join(f"{line}  // {n}" for n, line in enumerate(OWN.splitlines()))))
    assert not similar._alike(marks(OWN), marks(OWN.replace("for", "while").replace("total", "if (x) total")))
    assert marks(SOLUTION.decode()) == frozenset()


OWN_PYTHON = """
def counted(values, many):
    \"""Adds up what there is.\"""
    total, extra = 0, [1 for _ in range(many)]
    for place, value in enumerate(values[:many]):
        total += value * 2 if extra[place] else -value
    return total if total > 77 else [total, *extra]


class Store:
    def __init__(self, size):
        self.words = {place: None for place in range(size)}

    def put(self, at, word):
        while (at := at - 1) >= 0 and self.words.get(at) is None:
            self.words[at] = word ^ 0x5A
"""


def test_python_that_is_renamed_and_rearranged_is_alike() -> None:
    def marks(text: str) -> frozenset[int]:
        return similar.marks_of("10_plan", {"10_plan.py": text.encode()})

    function, store = OWN_PYTHON.split("\n\n\n")
    others = store.replace("words", "cells").replace("at", "i").replace("Store", "Kept") + "  # mine\n\n" + function
    others = others.replace("Adds up what there is.", "The sum").replace("total", "s").replace("0x5A", "90")
    assert similar._alike(marks(OWN_PYTHON), marks(others))
    assert not similar._alike(marks(OWN_PYTHON), marks(function))


@pytest.mark.parametrize("name", ["01_write_signal", "01_all_to_all", "10_plan"])
def test_the_solution_is_known_in_other_clothes(name: str) -> None:
    exercise = find(name)
    (piece,) = exercise.pieces
    text = (exercise.solution_dir / piece).read_text("utf-8")
    mark, between = ("#", r"(?<=\n)(?=def )") if piece.endswith(".py") else ("//", r"(?<=\n}\n)")
    head, *functions, last = re.split(between, text)
    local = {"01_write_signal": "count", "01_all_to_all": "inbox", "10_plan": "found"}[name]
    clothes = {
        "a comment": f"{mark} 1\n{text}",
        "comments of its own": "\n".join(f"{line}  {mark} {n}" for n, line in enumerate(text.splitlines())),
        "empty lines": text.replace("\n", "\n\n"),
        "Windows": f"\ufeff{text}".replace("\n", "\r\n"),
        "an old Mac": text.replace("\n", "\r"),
        "DOS": f"{text}\x1a",
        "another name": re.sub(rf"\b{local}\b", "ours", text),
        "another order": "".join([head, *functions[::-1], last]),
        "a list by its name": text.replace("received = []", "received = list()"),
    }
    for what, changed in clothes.items():
        assert similar.is_the_solution(name, {piece: changed.encode()}), what
    assert not similar.is_the_solution(name, {piece: (exercise.exercise_dir / piece).read_bytes()})


OURS_BUT_FOR_A_LINE = {"right_no_fence", "right_in_order_of_ids", "right_keeps_them_apart"}


@pytest.mark.slow
def test_honest_answers_are_no_twins_and_not_the_solution(tmp_path: Path) -> None:
    marks: dict[str, dict[str, frozenset[int]]] = {}
    for exercise in map(find, names()):
        for answer in of_kind("right")[exercise.name]:
            folder = submission(exercise, answer, tmp_path / exercise.name / answer)
            files = {piece: (folder / piece).read_bytes() for piece in exercise.pieces}
            assert similar.is_the_solution(exercise.name, files) == (answer in OURS_BUT_FOR_A_LINE), answer
            marks.setdefault(exercise.name, {})[answer] = similar.marks_of(exercise.name, files)
    assert len(marks) == len(names())
    for name, answers in marks.items():
        for one, other in itertools.combinations(answers.values(), 2):
            assert not similar._alike(one, other), name
    # one idea in a short task is had twice; a whole answer, once
    idea, whole = marks["06_arrivals"]["right_with_fences"], marks["00_first_kernel"]["right_backwards"]
    assert not similar._alike(idea, idea) and similar._alike(whole, whole)


def test_twins_are_named_in_the_views(tmp_path: Path) -> None:
    renamed = OWN.replace("total", "s").replace("// my very own way of doing it", "")
    place = handed_in(tmp_path / "in", ada=f"// 2 2\n{OWN}", bob=f"// 2 2\n{renamed}", cy="// 2 2\n")
    with Book() as book:
        graded_by(by_its_comment, book, place)
        assert {each.learner: each.same_as for each in standings_of(book)} == {
            "ada": ("bob",),
            "bob": ("ada",),
            "cy": (),
        }


# ---- the command -----------------------------------------------------------------------------------------------------
@pytest.fixture
def graded_by_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with a stand-in for the grader."""
    monkeypatch.setattr(
        class_grading.marking, "run", lambda jobs, pool, n, work: (by_its_comment(each) for each in jobs)
    )
    monkeypatch.setattr("ep_lib.commands.grade._ready", lambda exercise: None)


@pytest.mark.usefixtures("graded_by_comment")
def test_the_command_keeps_writes_and_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 0")
    book, out, table = str(tmp_path / "class.db"), tmp_path / "out", tmp_path / "grades.csv"
    words = ["grade", "--book", book, "--out", str(out), "--csv", str(table)]
    assert main([*words[:1], "01", *words[1:], "--all", str(place)]) == 1
    said = capsys.readouterr()
    assert "ada, 01_write_signal: 4 of 4\n" in said.out and f"{book} is a new gradebook" in said.err
    assert main([*words[:1], "01", *words[1:], "--all", str(place)]) == 1
    assert f"2 of 2 submissions are in {book} already" in capsys.readouterr().err
    other = tmp_path / "clas.db"
    for alone in (["--give", "bob", "01.2", "1", "--note", "half"], ["--deadline", "2001-01-01"], ["--out", str(out)]):
        assert main(["grade", "--book", str(other), *alone]) == 2
        assert f"there is no file {other}" in capsys.readouterr().err and not other.exists()
    assert main(["grade", "--csv"]) == 2 and "nothing to grade, and no book" in capsys.readouterr().err
    assert main([*words, "--give", "bob", "01.2", "1", "--note", "half"]) == 0
    assert "bob,01_write_signal,3,4,2,1," in table.read_text() and (out / "bob" / "feedback.html").exists()
    (out / "ada" / "feedback.txt").unlink()
    (out / "ada" / "feedback.txt").mkdir()  # in the way of one learner's feedback
    assert main([*words, "--give", "bob", "01.2", "2", "--note", "all of it"]) == 2
    assert "ada/feedback.txt cannot be written" in capsys.readouterr().err
    assert "bob,01_write_signal,4,4,2,2," in table.read_text() and "4 of 4" in (out / "bob/feedback.txt").read_text()
    assert main([*words, "--give", "bob", "01.2", "1", "--note", "half"]) == 2
    (out / "ada" / "feedback.txt").rmdir()
    assert main([*words, "--give", "bob", "01.two", "1", "--note", "half"]) == 2
    assert main([*words, "--give", "bob", "01", "1"]) == 2
    capsys.readouterr()
    assert main([*words, "--give", "bob", "01.2", "99", "--note", "a slip"]) == 2
    assert "task 2 of 01_write_signal has 2 points, and --give says 99" in capsys.readouterr().err
    assert main([*words, "--give", "bob", "01.9", "1", "--note", "a slip"]) == 2
    assert main([*words, "--deadline", "soon"]) == 2
    capsys.readouterr()
    assert main(["grade", "--book", book, "--deadline", "2001-01-01", "--late", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["points"] for each in found] == [0, 0] and found[0]["late"].endswith("days late")
    assert main(["grade", "--book", book, "--deadline", "2001-01-02", "--json"]) == 0  # the rule stays
    assert [each["points"] for each in json.loads(capsys.readouterr().out)] == [0, 0]
    assert main(["grade", "--book", book, "--late", "0", "--json"]) == 0  # the deadline stays
    assert [each["points"] for each in json.loads(capsys.readouterr().out)] == [4, 3]
    new = ["grade", "01", "--all", str(place), "--book", str(tmp_path / "new.db")]
    assert main([*new, "--late", "50/day"]) == 2
    assert "--late 50/day needs a deadline" in capsys.readouterr().err
    assert main([*new, "--deadline", "2001-01-01"]) == 1
    assert "no --late RULE: who is late is marked" in capsys.readouterr().err


@pytest.mark.usefixtures("graded_by_comment")
def test_times_count_for_what_is_graded_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: str) -> dict[str, tuple[float, str | None]]:
        capsys.readouterr()
        main(["grade", "01", "--book", str(tmp_path / "class.db"), "--json", *words])
        return {each["learner"]: (each["points"], each["late"]) for each in json.loads(capsys.readouterr().out)}

    place = handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 2")
    times = tmp_path / "times.csv"
    times.write_text("learner,time\nada,2000-12-31\nnobody,2000-12-31\n")
    late = ("--deadline", "2001-01-01", "--late", "100")
    assert {points for points, _ in rows("--all", str(place), *late).values()} == {0}
    assert rows("--all", str(place), "--times", str(times))["ada"] == (4, None)
    assert rows("--all", str(place))["ada"] == (4, None)  # it stays, whatever the file's date
    times.write_text("learner,time\nada,2001-02-01\nbob,2000-12-31\n")
    assert rows("--times", str(times)) == {"ada": (0, "31.0 days late"), "bob": (4, None)}
    times.write_text("learner,time\nnobody,2000-12-31\n")
    main(["grade", "--book", str(tmp_path / "class.db"), "--times", str(times)])
    assert "has nobody, of whom nothing was handed in" in capsys.readouterr().err
    (place / "ada" / PIECE).write_text("// 2 0")  # something new has a date of its own
    assert rows("--all", str(place))["ada"][1] != "31.0 days late"


@pytest.mark.usefixtures("graded_by_comment")
def test_rules_of_a_class_are_kept_and_can_be_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def points(*words: str) -> list[tuple[float, float]]:
        assert main(["grade", "--book", str(tmp_path / "class.db"), "--json", *words]) == 0
        return [(each["points"], each["share"]) for each in json.loads(capsys.readouterr().out)]

    times = tmp_path / "times.csv"
    times.write_text("learner,time\nada,2001-01-04\nbob,2001-01-04\n")
    new = ["--all", str(handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 2")), "--times", str(times)]
    main(["grade", "01", "--book", str(tmp_path / "class.db"), *new, "--deadline", "2001-01-01", "--late", "25/day"])
    capsys.readouterr()
    assert points("--late-days", "1") == [(2, 2), (2, 2)] == points()
    assert points("--extension", "ada", "2001-01-02") == [(3, 3), (2, 2)]
    assert points("01", "--extension", "ada", "2001-01-03", "--extension", "bob", "-") == [(4, 4), (2, 2)]
    assert points("--weight", "01_write_signal", "10") == [(4, 10), (2, 5)]
    assert points("--weight", "01_write_signal", "-", "--late-days", "0") == [(3, 3), (1, 1)]
    assert main(["grade", "--book", str(tmp_path / "class.db"), "--extension", "eve", "-"]) == 0
    assert "waits for it" not in capsys.readouterr().err, "it is taken back"
    assert points("--extension", "guy", "2001-01-02")  # before anything is handed in
    assert main(["grade", "--book", str(tmp_path / "class.db"), "--weight", "10_plan", "5"]) == 0
    said = re.sub(r"T[\d:+-]+", "", capsys.readouterr().err)  # of the machine's zone
    assert said == (
        f"rules of {tmp_path / 'class.db'}:\n  01_write_signal --deadline 2001-01-01 --late 25/day\n"
        "  --late-days 0\n  --extension ada 2001-01-02\n  01_write_signal --extension ada 2001-01-03\n"
        "  --extension guy 2001-01-02\n  --weight 10_plan 5\n"
    )
    assert points("--weight", "10_plan", "-")
    for wrong in (
        ["--best", "-1"],
        ["--weight", "02", "3"],
        ["--weight", "10_plan", "nan"],
        ["--extension", "ada", "x"],
    ):
        assert main(["grade", "--book", str(tmp_path / "class.db"), *wrong]) == 2
    assert "'02' may mean several exercises: choose one of 02_handshake, 02_reg" in capsys.readouterr().err
    platform = ["--canvas", str(tmp_path / "canvas.csv"), "--moodle", str(tmp_path / "moodle.csv"), "--best", "3"]
    assert main(["grade", "--book", str(tmp_path / "class.db"), *platform]) == 0
    assert "moodle.csv leaves out those without a number of Moodle's: ada, bob" in capsys.readouterr().err
    assert (tmp_path / "canvas.csv").read_text().endswith("ada,,,,,3\nbob,,,,,1\n")
    with Book(tmp_path / "class.db") as book:
        book.append("ada", "10_plan", "d", "v", result(Job("ada", "10_plan", {}), task(1, 2), task(2, 2)).record)
        book.hand_in([HandedIn("ada", "10_plan", "d", id="7")])
    for words, total in (([], "4,4"), (["01"], "3,4"), (["10_plan"], "4,4")):
        assert main(["grade", *words, "--book", str(tmp_path / "class.db"), *platform, "--best", "1"]) == 0
        assert f"Participant 7,ada,,,{total},Yes,\n" in (tmp_path / "moodle.csv").read_text()
    assert main(["grade", "01", "--book", str(tmp_path / "class.db"), "--deadline", "-", "--late", "0"]) == 2
    assert {each for each, _ in points("01", "--deadline", "-")} == {4}


def test_how_far_it_is_is_said_without_a_terminal(
    graded_by_comment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grade_command._so_far(45, 300, 127) == "45 of 300, 12 min left"
    assert grade_command._so_far(299, 300, 900) == "299 of 300, less than a minute left"
    monkeypatch.setattr(grade_command, "_SAID_EVERY_S", 0)
    main(["grade", "01", "--all", str(handed_in(tmp_path / "in", ada="// 2 2", bob="// 2 2"))])
    assert "1 of 2, less than a minute left\n2 of 2, less than a minute left\n" in capsys.readouterr().err


@pytest.mark.usefixtures("graded_by_comment")
def test_points_by_hand_for_what_was_not_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in" / "ada").mkdir(parents=True)
    out, book = tmp_path / "out", str(tmp_path / "class.db")
    assert main(["grade", "01", "--all", str(tmp_path / "in"), "--book", book]) == 2
    capsys.readouterr()
    give = ["grade", "--book", book, "--note", "seen at the desk", "--out", str(out), "--give", "ada"]
    assert main([*give, "01.1", "2"]) == 2
    assert "of ada was not graded (no file" in capsys.readouterr().err
    assert main([*give, "01", "3"]) == 0
    text = (out / "ada" / "feedback.txt").read_text()
    assert "01_write_signal: 3 of 12 points" in text and "no file" not in text
    assert '<td class="n whole some"' in (out / "overview.html").read_text()
    assert main(["grade", "01", "--all", str(tmp_path / "in"), "--book", book]) == 1, "3 of 12 is not all of it"


def test_times_come_from_the_platform_where_dates_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("learner,time,mail\nada,2026-01-01T10:00+00:00,a@b\nbob,,\n")
    assert class_grading.times_from(file) == {"ada": "2026-01-01T10:00:00+00:00"}
    place = handed_in(tmp_path / "in", ada="// 2 2")
    found = collect(place, [EXERCISE], puzzles=False)
    (entry,) = class_grading.with_times(found, class_grading.times_from(file))
    assert entry.handed_in.submitted == "2026-01-01T10:00:00+00:00" and entry.handed_in.is_told
    file.write_text("learner,time\nada,2026-01-01\nada,2026-01-02\n")
    with pytest.raises(GradingError, match="two times for ada"):
        class_grading.times_from(file)
    file.write_text("name\nada\n")
    with pytest.raises(GradingError, match="no columns learner and time"):
        class_grading.times_from(file)


@pytest.mark.extended
@pytest.mark.slow
@has_compiler
def test_ctrl_c_keeps_all_rows_and_leaves_no_process(tmp_path: Path) -> None:
    place = tmp_path / "in"
    for learner in ("eve", "fay", "guy"):
        submission(EXERCISE, "wrong_endless_loop", place / learner)
    (place / "ada").mkdir()
    command = ["grade", "01", "--all", str(place), "--book", str(tmp_path / "class.db"), "--out", str(tmp_path / "out")]
    with processes.guarded() as guard:
        words = [*processes.python("-m", "ep_lib"), *command, "--jobs", "2"]
        child = guard.start(words, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}, process_group=0)
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"ada, 01_write_signal: no file")
        while not list(tmp_path.glob("ep_grade_*/cwd")):  # until another one is being graded
            assert child.poll() is None
            time.sleep(0.01)
        below = processes.descendants(child.pid)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait() == 130
        child.stdout.close()
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    with Book(tmp_path / "class.db") as book:
        assert "ada" in book.learners()
    assert (tmp_path / "out" / "overview.html").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out", "class.db", "class.db-wal", "class.db-shm"}

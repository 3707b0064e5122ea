"""Answers, right and wrong, graded end to end: each loses the points of what is wrong, no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from grader_answers import of_kind, submission

from ep_lib import processes
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader.grading import Grade, grade
from ep_lib.workshop.grader.process.sandbox import Limits
from ep_lib.workshop.hidden import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]

EXERCISE = find("01")
WRONG = of_kind("wrong")
SEED = 1  # of the inputs that the hidden tests draw
DRAWS_ANEW = 3  # repetitions (--rounds) above which every grading draws its own: in `make nightly`


def packs(exercise: str) -> Iterator[tuple[str, ...]]:
    """The wrong answers of an exercise, several of them together where each has a first failing task of its own."""
    left = list(WRONG[exercise])
    while left:
        pack = [left.pop(0)]
        for answer in list(left):
            tasks = WRONG[exercise][answer].loses
            others = [WRONG[exercise][each].loses for each in pack]
            if all(min(tasks) not in other and min(other) not in tasks for other in others):
                pack.append(answer)
                left.remove(answer)
        yield tuple(pack)


def lost_by(exercise: str, answers: tuple[str, ...]) -> set[int]:
    return set().union(*(WRONG[exercise][answer].loses for answer in answers))


def looked_at() -> Iterator[tuple[str, tuple[str, ...], set[int]]]:
    """Exercise, wrong answers, and the tasks that are looked at: those that lose their points and, until each of
    the exercise's tasks has had its turn, one that must keep them. `make nightly` looks at all."""
    for exercise in WRONG:
        not_shown = {task.number for task in find(exercise).tasks}
        for pack in packs(exercise):
            lost = lost_by(exercise, pack)
            kept = set(sorted(not_shown - lost)[:1])
            not_shown -= kept
            yield exercise, pack, lost | kept


def right() -> Iterator[tuple[str, tuple[str, ...], list[int]]]:
    """Exercise, right answers, together where they fill different holes, and the tasks that are looked at: those
    of their holes, and those that stand on them. `make nightly` looks at all."""
    for name, right_ones in of_kind("right").items():
        exercise = find(name)
        packed: list[tuple[tuple[str, ...], set[str]]] = []
        for answer, (regions, _, _) in right_ones.items():
            holes = regions.keys() - {"top"}
            if packed and not packed[-1][1] & holes:
                packed[-1] = ((*packed[-1][0], answer), packed[-1][1] | holes)
            else:
                packed.append(((answer,), holes))
        for answers, holes in packed:
            own = {hole.task for hole in exercise.holes if hole.at in holes}
            yield exercise.name, answers, [t.number for t in exercise.tasks if {t.number, *t.stands_on} & own]


SUBMISSIONS = list(looked_at())
RIGHT = list(right())
FIRST = {exercise: pack for exercise, pack, _ in reversed(SUBMISSIONS)}  # the packs that `make test` looks at


Graded = Callable[..., Grade]


@pytest.fixture
def graded(rounds: int) -> Graded:
    """graded(exercise, answers, folder, tasks): each time on the same inputs; in `make nightly` on new ones, and all
    tasks."""
    seed = SEED if rounds <= DRAWS_ANEW else None

    def run(exercise: str, answers: str | tuple[str, ...], folder: Path, tasks: Sequence[int] = ()) -> Grade:
        # half the usual memory: a busy machine needs long to fill it
        submitted = submission(find(exercise), answers, folder)
        only = tasks if rounds <= DRAWS_ANEW else ()
        return grade(exercise, submitted, limits=Limits(resident_bytes=1 << 30), seed=seed, tasks=only)

    return run


def test_every_exercise_has_answers_to_all_of_its_tasks() -> None:
    for exercise in names():
        assert len(WRONG[exercise]) >= 5 and all(
            answer.loses and all(answer.says) for answer in WRONG[exercise].values()
        )
        assert len({answer for name, answers, _ in RIGHT if name == exercise for answer in answers}) >= 2
        right = [task for name, _, tasks in RIGHT if name == exercise for task in tasks]
        assert {task.number for task in find(exercise).tasks} == set(right), "a task that no right answer fills"


@pytest.mark.parametrize(
    ("exercise", "answers", "tasks"),
    [
        pytest.param(
            *each, id="-".join((each[0], *each[1])), marks=[pytest.mark.extended] if each[1] != FIRST[each[0]] else []
        )
        for each in SUBMISSIONS
    ],
)
def test_a_wrong_answer_loses_the_points_of_what_is_wrong(
    exercise: str, answers: tuple[str, ...], tasks: set[int], tmp_path: Path, graded: Graded
) -> None:
    result = graded(exercise, answers, tmp_path, sorted(tasks))
    failed = {each.task.number: each for each in result.tasks if not each.passed}
    lost = lost_by(exercise, answers)
    assert failed.keys() == lost, "\n".join(f"{number}: {each.message}" for number, each in failed.items())
    assert result.points == sum(each.task.points for each in result.tasks if each.task.number not in failed)
    advice = {test.advice for test in load(exercise, public=False).behaviours} - {""}
    for each in failed.values() if not result.problem else ():  # what a test advises, where a task below is wrong, too
        if failed.keys() & set(each.task.stands_on) and not each.unfinished:
            said = each.message.partition("not the reason: ")[0]
            assert "look there first" in said and not any(text in said for text in advice)
    for answer in answers:
        message = failed[min(WRONG[exercise][answer].loses)].message
        assert any(part in message for part in WRONG[exercise][answer].says.split("|")), message
        assert str(tmp_path.parent) not in message
        assert "/hidden/" not in message


@pytest.mark.extended
@pytest.mark.parametrize(
    ("exercise", "answers", "tasks"), RIGHT, ids=["-".join((name, *pack)) for name, pack, _ in RIGHT]
)
def test_a_right_answer_gets_full_marks_however_it_is_written(
    exercise: str, answers: tuple[str, ...], tasks: list[int], tmp_path: Path, graded: Graded
) -> None:
    result = graded(exercise, answers, tmp_path, tasks)
    assert all(each.passed for each in result.tasks), result.as_json()


# Wrong lines that a first, easy case does not show.
WRONG_LINES = {
    ("10_plan", 1): ("if expert >= 0:", "if True:"),
    ("10_plan", 3): ("source != rank", "source + 1 != rank"),
    ("09_router", 2): (", minlength=num_experts", ""),
    ("04_proxy_loop", 1): ("while count < self.most - len(self.batch):", "while True:"),
    ("02_handshake", 3): ("zlib.crc32(body) != checksum", "False"),
}


@pytest.mark.extended
@pytest.mark.parametrize(("name", "task"), WRONG_LINES)
def test_check_is_as_strict_as_its_ok(name: str, task: int, tmp_path: Path) -> None:
    exercise = find(name)
    text = (exercise.solution_dir / exercise.pieces[0]).read_text()
    right, wrong = WRONG_LINES[name, task]
    assert right in text
    (tmp_path / exercise.pieces[0]).write_text(text.replace(right, wrong))
    failed = [each.task.number for each in grade(name, tmp_path, public=True).tasks if not each.passed]
    assert task in failed


@pytest.mark.extended
def test_whole_numbers_may_be_floats(tmp_path: Path) -> None:
    exercise = find("10_plan")
    text = (exercise.solution_dir / exercise.pieces[0]).read_text()
    floats = text.replace("int(counts[:source].sum())", "float(counts[:source].sum())")
    assert floats != text
    (tmp_path / exercise.pieces[0]).write_text(floats)
    assert grade("10_plan", tmp_path).full


@pytest.mark.parametrize("name", names())
def test_the_solution_gets_full_marks(name: str, rounds: int) -> None:
    """What stands beside a wrong answer is the solution's: `make test` looks at what is left."""
    numbers = {task.number for task in find(name).tasks}
    first = next(tasks for exercise, pack, tasks in SUBMISSIONS if exercise == name and pack == FIRST[name])
    shown = first - lost_by(name, FIRST[name])
    assert numbers > shown, "tasks=() would look at all"
    result = grade(name, find(name).solution_dir, tasks=sorted(numbers - shown) if rounds <= DRAWS_ANEW else ())
    assert all(each.passed for each in result.tasks), result.as_json()


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++")
@pytest.mark.parametrize("name", ["05_ring", "07_sums"])
def test_the_solution_gets_full_marks_with_clang(name: str) -> None:
    command = processes.python("-m", "ep_lib", "grade", name, "--mine", str(find(name).solution_dir), "--json")
    done = subprocess.run(command, env={**os.environ, "EP_LIB_CXX": "clang++"}, capture_output=True, check=False)
    assert json.loads(done.stdout)["points"] == find(name).points, done.stdout


@pytest.mark.extended(after=2)
@pytest.mark.parametrize("name", names())
def test_the_exercise_as_shipped_gets_nothing_and_names_every_task(name: str) -> None:
    result = grade(name, find(name).exercise_dir)
    assert result.points == 0
    repairs = {hole.task for hole in find(name).holes if hole.given}
    for each in result.tasks:
        assert each.unfinished == (each.task.number not in repairs)
        assert each.task.number in repairs or each.message.startswith(f"Task {each.task.number}")


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

"""`ep-lib release`: no line of an answer in any file of it, and the course works there all the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import prove_cases
import pytest
from support import ROOT

from ep_lib.cli import main
from ep_lib.errors import ArgumentError, GradingError
from ep_lib.jit import sealed
from ep_lib.workshop import hidden
from ep_lib.workshop.classroom import class_grading, release
from ep_lib.workshop.course import puzzles
from ep_lib.workshop.course.generate import sealed_text, with_holes
from ep_lib.workshop.exercises import find, names

EXERCISES = [find(name) for name in names()]
HIDDEN = ROOT / "ep_lib" / "workshop" / "hidden"

# Lines of answers that the library and the notebooks also have elsewhere, about other things: how such loops and votes
# are written here. None of them answers a task.
IDIOMS = {
    "ok = __shfl_sync(kFullWarp, ok, 0);",
    "return __syncthreads_or(failed) == 0;",
    "for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {",
    "for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {",
    "if (signals.leave_out(peer)) continue;",
    "if (lane_id() == 0) ring_return_credit(ring);",
    "for token, experts in enumerate(topk_idx):",
    "flag = rank.symmetric(1, np.uint64)",
    "if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);",  # of a puzzle, and given in exercise 03_batches
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("release") / "course"
    release.release(place, root=ROOT)
    return place


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this ep_lib were a release."""
    monkeypatch.setattr(sealed, "in_use", lambda: True)


def lines_of(path: Path) -> Iterator[str]:
    text = path.read_bytes().decode("utf-8", "replace")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return map(release.said, text.splitlines())


def test_no_line_of_an_answer_is_in_any_file(tree: Path) -> None:
    answers = release.answer_lines(EXERCISES)
    assert len(answers) > 250 and all(any(line in answers for line in lines_of(path)) for path in solutions())
    of_puzzles = {
        release.said(line)
        for notebook in puzzles.notebooks()
        for puzzle in puzzles.puzzles_of(notebook)
        for line in puzzle.solution.splitlines()
        if puzzle.solution.count("\n") > 2 and len(re.findall(r"\w", line)) >= 30
    }
    assert len(of_puzzles) > 10
    leaks = {
        (path.relative_to(tree).as_posix(), line)
        for path in tree.rglob("*")
        if path.is_file()
        for line in lines_of(path)
        if (line in answers or line in of_puzzles) and line not in IDIOMS
    }
    assert not leaks


def test_what_is_proved_to_be_found_tells_no_answer(tree: Path) -> None:
    answers = release.answer_lines(EXERCISES)
    given = "".join(
        (each.solution_dir / "exercise.toml").read_text()
        + "".join((each.exercise_dir / piece).read_text() for piece in each.pieces)
        for each in EXERCISES
    )
    changed = {line for case in prove_cases.CASES for line in map(release.said, case.mistake.old.splitlines())}
    told = {line for line in changed if any(line in each for each in answers) and line not in given and len(line) > 20}
    assert len(told) > 5
    leaks = {
        (path.relative_to(tree).as_posix(), line)
        for path in tree.rglob("*")
        if path.is_file() and not path.stem.endswith("_broken")  # which come close: docs/release.md
        for text in ["\n".join(lines_of(path))]
        for line in told
        if line in text
    }
    assert not leaks


def solutions() -> list[Path]:
    """All but the two that are given nearly whole: their lines are too short, or are in what learners get."""
    return [each.solution_dir / piece for each in EXERCISES for piece in each.pieces]


def test_what_is_left_out(tree: Path) -> None:
    files = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert not any(name.startswith((".git/", "mine/", "docs/site/")) for name in files)
    assert {name for name in files if name.startswith("tests/")} == {"tests/kernels/nixl_guide.cu"}
    descriptions = {f"solutions/{name}/exercise.toml" for name in names()}
    assert {name for name in files if name.startswith("solutions/")} == descriptions
    assert {"README.md", "Makefile", "notebooks/00_start_here.ipynb", "docs/glossary.md"} <= files
    texts = [path.read_text() for path in (tree / "notebooks").glob("*.ipynb")]
    unfolding = [answer for text in texts for answer in re.findall(r"</summary>(.*?)</details>", text, re.DOTALL)]
    assert unfolding and all("The answer is with your instructor." in answer for answer in unfolding)


def test_every_link_of_a_page_leads_somewhere(tree: Path) -> None:
    for page in tree.rglob("*.md"):
        links = re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text("utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page
    assert "](docs/learners.md)" in (tree / "README.md").read_text("utf-8")


def test_no_text_sends_a_learner_to_the_grader(tree: Path) -> None:
    texts = [*(tree / "notebooks").glob("*.ipynb"), *(tree / "exercises").rglob("*.*")]
    assert len(texts) > 40
    told = [path for path in texts if re.search(r"ep-lib grade|workshop\.grade|library itself runs", path.read_text())]
    assert not told
    for path in (tree / "notebooks").glob("[0-9]*.ipynb"):
        assert "hand in your folder `mine/`" in path.read_text(), path.name
    readme = (tree / "exercises" / "05_ring" / "README.md").read_text()
    assert "\n\nThe tests that give points are with your instructor: hand in your folder `mine/`.\n\nFill" in readme


def test_what_learners_of_a_git_classroom_write_is_pushed(tree: Path, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=ada", "-c", "user.email=ada@localhost")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    exercise = find("10_plan")
    (tmp_path / "work" / "mine" / exercise.name).mkdir(parents=True)
    shutil.copy(tree / ".gitignore", tmp_path / "work")
    for piece in exercise.pieces:
        (tmp_path / "work" / "mine" / exercise.name / piece).write_text("# mine\n")
    git("init", "-q", "work")
    git("-C", "work", "add", "-A")
    git("-C", "work", "commit", "-qm", "mine")
    git("clone", "-q", "work", "plan-submissions/plan-ada")
    (found,) = class_grading.collect(tmp_path / "plan-submissions", [exercise], puzzles=False)
    assert (found.job.learner, found.problem) == ("ada", "") and set(found.job.files) == set(exercise.pieces)
    assert "/mine/" in (ROOT / ".gitignore").read_text(), "in a clone it stays out of what is committed"


def test_a_check_has_what_it_needs_and_no_more(tree: Path, inside: None) -> None:
    for path in sorted(HIDDEN.glob("ex*.py")):
        public = sealed.opened((tree / path.relative_to(ROOT)).read_text())
        assert set(re.findall(r"^([A-Z]+) = ", public, re.MULTILINE)) <= {
            "KERNELS",
            "BEHAVIOURS",
            "REHEARSED",
            "PIECE",
            "IMPORTS",
        }
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules[path.stem] = module
        exec(compile(public, path.name, "exec"), module.__dict__)
        del sys.modules[path.stem]
        whole = sys.modules.get(f"{hidden.__name__}.{path.stem}") or __import__(
            f"{hidden.__name__}.{path.stem}", fromlist=["BEHAVIOURS"]
        )
        assert [each.title for each in module.BEHAVIOURS] == [each.title for each in whole.BEHAVIOURS]


def test_lines_outside_of_holes_keep_the_numbers_that_learners_see() -> None:
    for exercise in EXERCISES:
        for piece in (piece for piece in exercise.pieces if not piece.endswith(".py")):
            text = (exercise.solution_dir / piece).read_text()
            seen = with_holes(exercise, piece, text)[0].splitlines()
            number, same = 1, 0
            for line in sealed_text(exercise, text).splitlines():
                if line.startswith("#line "):
                    number = int(line.split()[1])
                    continue
                same += number <= len(seen) and seen[number - 1] == line
                number += 1
            given = [line for line in seen if release.said(line)]
            assert same > len(given) / 2 and number - 1 == len(seen), piece


IN_A_RELEASE = """
import sys
from pathlib import Path

import numpy as np

import ep_lib
from ep_lib import workshop
from ep_lib.errors import GradingError
from ep_lib.workshop.notebook import show_source

assert Path(ep_lib.__file__).is_relative_to(Path.cwd())
assert not workshop.check("00_first_kernel")
assert workshop.check("00_first_kernel", sys.argv[1])
try:
    workshop.grade("00_first_kernel", sys.argv[1])
except GradingError as error:
    assert "are with your instructor" in str(error)
from ep_lib.workshop.grader.grading import grade
assert grade("00_first_kernel", sys.argv[1], tests=sys.argv[2]).full
assert workshop.python_piece("02_handshake").frame(b"abc").endswith(b"abc")
assert not workshop.puzzle("00.1").puzzle.solution and "instructor" in repr(workshop.puzzle("00.1").solution())
assert "is still to do" in repr(show_source("tutorial_kernels/00_first_kernel.cuh", "tell", mark="of the answer"))
assert "sealed" not in repr(show_source("tutorial_kernels/00_first_kernel.cuh"))

kernel = ep_lib.Kernel.from_source(
    '''#include <00_first_kernel.cuh>
    extern "C" __global__ void greet(int* box, const int* numbers, uint64_t* flag) {
        write_numbers(box, numbers, 4, 1 - ep::rank());
        if (numbers[0] == 0) tell(flag, 1 - ep::rank());
        box[5] = 1;
    }''', "greet", include=["tutorial_kernels"])

def main(rank):
    box, flag = rank.symmetric(4, np.int32), rank.symmetric(1, np.uint64)
    kernel.launch(rank, 1, 32, box, rank.to_device(np.arange(4, dtype=np.int32)), flag)

report = ep_lib.check(main, ranks=2, seeds=1)
assert not report.ok
print(report)
"""


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler")
def test_the_course_works_in_a_release(tree: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(tree, tmp_path / "course"))  # it keeps what was done in mine/
    mine = find("00_first_kernel").solution_dir
    environment = {**os.environ, "PYTHONPATH": str(place)}
    environment.pop("EP_LIB_WORKSHOP", None)
    command = [sys.executable, "-c", IN_A_RELEASE, str(mine), str(HIDDEN)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not release.answer_lines(EXERCISES) & set(map(release.said, done.stdout.splitlines())), "nothing it prints"


def test_holed_pieces_are_not_there_at_all(tmp_path: Path) -> None:
    release.release(tmp_path / "course.zip", pieces="holed", root=ROOT)
    with zipfile.ZipFile(tmp_path / "course.zip") as archive:
        for exercise in EXERCISES:
            for piece in exercise.pieces:
                text = archive.read(f"{release.TOP}/{exercise.runs_as}/{piece}").decode()
                assert "is still to do" in text or exercise.name == "07_sums"
                assert " sealed: " not in text


@pytest.mark.slow
def test_the_same_tree_as_a_folder_and_as_an_archive(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "--to", str(tmp_path / "course.tar.gz")]) == 0
    assert "no solutions, the checks sealed" in capsys.readouterr().out
    with tarfile.open(tmp_path / "course.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    unpacked = tmp_path / release.TOP
    got = {path.relative_to(unpacked): path.read_bytes() for path in unpacked.rglob("*") if path.is_file()}
    assert {path: data for path, data in files.items() if "__pycache__" not in path.parts} == got


def test_the_grader_of_a_release_says_how_to_hand_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "in_use", lambda: True)
    assert main(["grade"]) == 0
    assert "10_plan: " in (said := capsys.readouterr().out) and sealed.HOW_TO_HAND_IN in said
    assert main(["grade", "01"]) == 2
    said = capsys.readouterr().err
    assert "for 01_write_signal are with your instructor. Hand in your folder mine/" in said
    assert "python -m zipfile -c mine.zip mine" in said


def test_where_a_release_cannot_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="is there already"):
        release.release(tmp_path)
    with pytest.raises(ArgumentError, match="is there already"):
        release.release(tmp_path / "notes.txt")
    with pytest.raises(ArgumentError, match="cannot be written: Not a directory"):
        release.release(tmp_path / "notes.txt" / "course")
    with pytest.raises(ArgumentError, match="pieces is 'open'; it must be one of 'sealed', 'holed'"):
        release.release(tmp_path / "course", pieces="open")  # type: ignore[arg-type]
    monkeypatch.setattr(sealed, "in_use", lambda: True)
    with pytest.raises(ArgumentError, match="this is a release already"):
        release.release(tmp_path / "course")


def test_what_git_does_not_know_is_left_out_and_named(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    clone = tmp_path / "clone"
    (clone / "notebooks").mkdir(parents=True)
    shutil.copytree(ROOT / "solutions" / "10_plan", clone / "solutions" / "10_plan")
    (clone / "ep_lib").mkdir()
    (clone / "ep_lib" / "known.py").write_text("")
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    (clone / "notebooks" / "who failed.txt").write_text("bob")
    assert release.unknown_to_git(clone) == ["notebooks/who failed.txt"]
    assert release.release(tmp_path / "course", root=clone) == [
        "ep_lib/known.py",
        "ep_lib/release.json",
        "solutions/10_plan/exercise.toml",
    ]
    shutil.rmtree(clone / "ep_lib")
    with pytest.raises(GradingError, match="has no ep_lib/: a release is made in a clone"):
        release.release(tmp_path / "another", root=clone)

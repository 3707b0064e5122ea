"""Exercises: drift from the solutions is found, holes fail loudly, a broken exercise.toml says what is wrong."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import ep_lib
from ep_lib import workshop
from ep_lib.errors import GradingError, KernelFault
from ep_lib.workshop import exercises
from ep_lib.workshop.course import generate
from ep_lib.workshop.exercises import Exercise

pytestmark = [pytest.mark.cuda_rules, pytest.mark.slow]


@pytest.fixture
def copy(tmp_path: Path) -> Exercise:
    """Exercise 01 in a workshop of its own that a test may spoil."""
    root = exercises.workshop_root()
    shutil.copytree(root / "solutions", tmp_path / "solutions")
    shutil.copytree(root / "exercises", tmp_path / "exercises")
    shutil.copytree(root / "tutorial_kernels", tmp_path / "tutorial_kernels")
    (tmp_path / "notebooks").mkdir()
    shutil.copyfile(root / "notebooks/puzzles.ipynb", tmp_path / "notebooks/puzzles.ipynb")
    for name in exercises.names():
        exercise = exercises.find(name, tmp_path)
        for file in (*exercise.pieces, *exercise.also):
            (tmp_path / exercise.runs_as / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / exercise.runs_as / file, tmp_path / exercise.runs_as / file)
    return exercises.find("01", tmp_path)


def test_the_line_of_the_readme_compiles_with_the_learners_piece() -> None:
    exercise = exercises.find("00_first_kernel")
    text = (exercise.exercise_dir / "README.md").read_text()
    (path,) = re.findall(r'from_file\("([^"]+)", name', text)
    kernel = ep_lib.Kernel.from_file(exercise.root / path, "pass_on", include=[exercise.exercise_dir])
    with pytest.raises(KernelFault, match="Task 1 is still to do"):
        ep_lib.spawn(_pass_on, 2, "emulator", args=(kernel,))


def _pass_on(rank: ep_lib.Rank, kernel: ep_lib.Kernel) -> None:
    box, flag, peer = rank.symmetric(1, "int32"), rank.symmetric(1, "uint64"), 1 - rank.rank
    kernel.launch(rank, 1, 1, box, rank.empty(1, "int32"), 1, flag, rank.empty(1, "int32"), peer, peer)
    rank.synchronize()


def test_an_own_include_root_replaces_the_piece() -> None:
    root = exercises.workshop_root()
    source = root / "tutorial_kernels" / "01_write_signal.cu"
    mine = ep_lib.Kernel.from_file(source, "write_signal_thread", include=[root / "exercises" / "01_write_signal"])

    def main(rank: ep_lib.Rank) -> None:
        data, signal = rank.symmetric((64,), "uint8"), rank.symmetric((1,), "uint64")
        if rank.rank == 0:
            mine.launch(rank, 1, 32, data, data, 64, signal, 1)

    with pytest.raises(ep_lib.errors.KernelFault, match="Task 1 is still to do") as caught:
        ep_lib.spawn(main, ranks=2, backend="emulator", heap_bytes=1 << 20)
    assert "exercises/01_write_signal/ep/write_signal.cuh:" in caught.value.location


def test_drift_is_found_and_mended(copy: Exercise) -> None:
    assert generate.drifted(generate.generated(copy)) == []
    piece = copy.pieces[0]
    copied, holes = copy.root / copy.runs_as / piece, copy.exercise_dir / piece
    copied.write_text("// edited in the wrong place\n")
    holes.unlink()
    assert set(generate.drifted(generate.generated(copy))) == {copied, holes}
    assert set(generate.write(generate.generated(copy))) == {copied, holes}
    assert generate.drifted(generate.generated(copy)) == []


def test_the_command_names_what_drifted(
    copy: Exercise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(copy.root))
    (copy.exercise_dir / copy.pieces[0]).write_text("")
    assert generate.main(["--check"]) == 1
    assert f"exercises/{copy.name}/{copy.pieces[0]}" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check", "1"]) == 0
    assert generate.main(["99"]) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("// EXERCISE-BEGIN 1\n", "never ends"),
        ("// EXERCISE-BEGIN 1\n// EXERCISE-END 2\n", "the open one is 1"),
        ("// EXERCISE-BEGIN 1\n// EXERCISE-BEGIN 2\n", "begins inside"),
        ("// EXERCISE-BEGIN 9\n// EXERCISE-END 9\n", "not described"),
        ("int x;  // EXERCISE-BEGIN 1\n", "a comment line of its own"),
        ("// EXERCISE-END 1\n", "ends here, but"),
    ],
)
def test_wrong_markers_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(GradingError, match=complaint):
        generate.with_holes(exercises.find("01"), "x.cuh", text)


def test_a_python_piece_gets_python_holes() -> None:
    exercise = replace(exercises.find("01"), pieces=("x.py",))
    text, found = generate.with_holes(
        exercise, "x.py", "def f():\n    # EXERCISE-BEGIN 1\n    return 1\n    # EXERCISE-END 1\n"
    )
    assert found == ["1"]
    with pytest.raises(NotImplementedError, match="Task 1 is still to do"):
        scope: dict[str, object] = {}
        exec(text, scope)
        scope["f"]()  # type: ignore[operator]


@pytest.mark.parametrize("name", [1, "1", "01", "01_write_signal", "01_write_signal/"])
def test_exercises_are_found_by_number_and_name(name: str | int) -> None:
    assert exercises.find(name).name == "01_write_signal"


@pytest.mark.parametrize("name", [77, "", "99", "write", "../01_write_signal"])
def test_an_unknown_exercise_lists_those_there_are(name: str | int) -> None:
    with pytest.raises(GradingError, match="01_write_signal"):
        exercises.find(name)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('title = "Write, then signal"', "title = 3", "'title' must be a str"),
        ("number = 2", "number = 7", "numbered 1, 2, 3"),
        ("points = 4", "points = 0", "at least one point"),
        ("stands_on = [2, 3]", "stands_on = [5]", "it must name earlier tasks"),
        ('at = "5a"', 'at = "9a"', "hole at='9a'"),
        ('at = "5a"', 'at = "1b"', "not described in exercise.toml"),
        ('"ep/write_signal.cuh"', '"../write_signal.cuh"', "must lie inside"),
        ("[[task]]", "[[task", "cannot read"),
    ],
)
def test_a_broken_exercise_toml_says_what_is_wrong(copy: Exercise, old: str, new: str, complaint: str) -> None:
    path = copy.solution_dir / exercises.METADATA
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")
    with pytest.raises(GradingError, match=complaint):
        generate.generated(exercises.find("01", copy.root))


def test_start_copies_once(copy: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(copy.root))
    mine = workshop.start("01")
    piece = mine / copy.pieces[0]
    assert piece.read_bytes() == (copy.exercise_dir / copy.pieces[0]).read_bytes()
    piece.write_text("// my work\n")
    assert workshop.start("01") == mine == copy.root / "mine" / copy.name
    assert piece.read_text() == "// my work\n"


def test_a_folder_without_solutions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(tmp_path))
    with pytest.raises(GradingError, match="no folder solutions/"):
        exercises.names()

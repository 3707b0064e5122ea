"""The contest of extras/: points for speed, none for a race or a wrong result, and a leaderboard that only grows."""

from __future__ import annotations

import json
import multiprocessing
import runpy
from pathlib import Path

import contest
import pytest

from ep_lib import errors

main = runpy.run_path(str(Path(contest.__file__).parent))["main"]


def entered(folder: Path, *changes: tuple[str, str], task: str = "alltoall") -> Path:
    """The starter with some texts replaced by others."""
    path = contest.start(task, folder)
    text = path.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return folder


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("task", contest.CONTESTS)
def test_the_starter_gets_points(task: str, tmp_path: Path) -> None:
    result = contest.score(task, entered(tmp_path, task=task), "starter")
    assert result.points > 0 and not result.problem and len(result.microseconds) == 2
    if task == "dispatch":
        assert result.points == contest.score(task, tmp_path, "starter").points, "the clock gives the same time twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("__syncthreads();  // data, then signal", ""), "A race scores 0"),
        (("ep::signal_set(job.memory.flags + me, 1, thread)", "thread < 0"), "every result must equal NumPy's"),
        (("theirs[i] = job.source", "oops[i] = job.source"), "alltoall.cuh:13"),
        (("kThreads = 128", "kThreads = 2048"), "constexpr int kThreads = N;"),
    ],
)
def test_a_race_a_wrong_result_and_a_typo_get_none(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    result = contest.score("alltoall", entered(tmp_path, change), "somebody")
    assert result.points == 0 and says in result.problem


def made_up(name: str, us: float, problem: str = "") -> contest.Score:
    return contest.Score(contest.find("dispatch"), Path(), name, "0" * 64, [us], problem)


def enter_many(name: str, leaderboard: Path) -> None:
    for number in range(25):
        contest.enter(made_up(name, 1 + number), leaderboard)


def test_two_at_once_lose_no_line(tmp_path: Path) -> None:
    leaderboard = tmp_path / "new" / "board.jsonl"
    fork = multiprocessing.get_context("fork")
    people = [fork.Process(target=enter_many, args=(name, leaderboard)) for name in ("ada", "grace")]
    [each.start() for each in people]
    [each.join() for each in people]
    lines = [json.loads(line) for line in leaderboard.read_text("utf-8").splitlines()]
    assert sorted(line["name"] for line in lines) == ["ada"] * 25 + ["grace"] * 25
    assert all(line["schema"] == contest.SCHEMA and line["task"] == "dispatch" for line in lines)


def test_the_best_counts_and_a_broken_line_harms_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = tmp_path / "board.jsonl"
    board.write_text('{"task": "dispatch", "na', "utf-8")  # cut off
    for name, us, problem in (("ada", 20.0, ""), ("grace", 10.0, ""), ("ada", 40.0, ""), ("eve", 1.0, "a race")):
        contest.enter(made_up(name, us, problem), board)
    ranked, unreadable = contest.standings(board)
    assert [(each["name"], each["points"]) for each in ranked] == [("grace", 100), ("ada", 50), ("eve", 0)]
    assert unreadable == 1
    assert main(["--leaderboard", str(board)]) == 0
    out = capsys.readouterr().out
    assert out.index("grace") < out.index("ada") and "no entries: 1" in out
    assert main(["all-to-all", "--leaderboard", str(board), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_start_never_writes_to_what_is_there(tmp_path: Path) -> None:
    mine = contest.start("combine", tmp_path)
    mine.write_text("mine", "utf-8")
    assert contest.start("combine", tmp_path).read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["alltoall", "--mine", "nowhere"], "makes one to begin with"),
        (["--mine", "x"], "which task?"),
        (["alltoall", "--mine", "x", "--name", "a" * 41], "--name has 1 to 40"),
        (["alltoall", "--mine", "x", "--name", "\a"], "--name has 1 to 40"),
    ],
)
def test_what_does_not_fit_is_a_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_leaderboard_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(errors.GradingError, match="name another --leaderboard"):
        contest.enter(made_up("ada", 1.0), tmp_path)  # a folder


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_points_show_without_a_leaderboard(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "score", lambda task, mine, name, say: made_up(name, 20.0))
    words = ["dispatch", "--mine", str(tmp_path), "--name", "ada", "--leaderboard", str(tmp_path), *form]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert ("50 points" in out or json.loads(out)["points"] == 50) and "Added to" not in out
    assert "warning: the result cannot be added" in err and "name another --leaderboard" in err

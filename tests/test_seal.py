"""Pieces in Python that reach for the grader's half of their process: no points, and a flag for the instructor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ep_lib.workshop import seal
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader import grade
from ep_lib.workshop.scenario import CHECKER_IS_OFF
from ep_lib.workshop.watched import worth_a_look

EXERCISE = find("00_first_main")
PIECE = "00_first_main.py"
HEAD = """
import ep_lib
def neighbours(me, ranks): return (me - 1) % ranks, (me + 1) % ranks
def pass_on(*_): raise RuntimeError
def pass_far(*_): raise RuntimeError
"""
CHEATS = {
    "the library's function replaced": "ep_lib.check = lambda *_, **__: None",
    "its code replaced": "ep_lib.spawn.__code__ = (lambda *_, **__: [[1], [2]]).__code__",
    "a method replaced during a run": """
def pass_on(rank, kernel, mine):
    ep_lib.Rank.to_host = lambda *_: mine
    return mine
""",
    "all objects": """
import gc
def pass_on(rank, kernel, mine): return [each for each in gc.get_objects() if type(each) is list][0]
""",
}


def submitted(folder: Path, code: str) -> Path:
    (folder / PIECE).write_text(HEAD + code + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS)
def test_what_changes_the_library_has_no_points_and_a_flag(cheat: str, tmp_path: Path) -> None:
    found = grade("00_first_main", submitted(tmp_path, CHEATS[cheat]), tasks=[2], seed=1)
    assert found.points == 0
    assert any("Tampered" in flag for flag in found.flags), found.tasks


@pytest.mark.slow
def test_the_numbers_of_other_ranks_are_not_in_the_frames_of_a_rank(tmp_path: Path) -> None:
    code = """
import sys
def pass_on(rank, kernel, mine):
    frame = sys._getframe(1)
    while "numbers" not in frame.f_locals and "waiting" not in frame.f_locals: frame = frame.f_back
    before = (rank.rank - 1) % rank.world_size
    return list(frame.f_locals.get("waiting", {}).get(before) or frame.f_locals["numbers"][before])
"""
    found = grade("00_first_main", submitted(tmp_path, code), tasks=[2], seed=1)
    assert found.points == 0
    assert any("_getframe" in flag for flag in found.flags)


def test_the_courses_own_pieces_need_no_look() -> None:
    for name in ("00_first_main", "01_all_to_all", "02_handshake", "02_registration", "09_router", "10_plan"):
        assert worth_a_look(find(name), find(name).solution_dir) == ()


def test_a_silent_checker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        findings = ()

    monkeypatch.setattr(seal, "check", lambda *_, **__: Silent)
    kernel = 'extern "C" __global__ void canary(int* word) {}'
    assert seal.findings_of(lambda rank: None, 2, kernel, seeds=1, heap_bytes=1 << 16) == [CHECKER_IS_OFF]

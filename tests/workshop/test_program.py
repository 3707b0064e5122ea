"""The learner's program so far: which pieces of the main path are theirs, what went through them, and whose mistake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import ROOT

from ep_lib import workshop

pytestmark = pytest.mark.slow


def mine_with(folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(ROOT / "solutions" / name, folder / name)
    return folder


def test_each_piece_of_the_main_path_is_named_with_what_went_through_it(tmp_path: Path) -> None:
    mine = mine_with(tmp_path, "01_write_signal", "06_slots", "07_groups", "08_fp8")
    found = workshop.my_program(mine)
    pieces = {piece.exercise.name: found.words(piece) for piece in found.pieces}
    assert list(pieces) == ["01_write_signal", "06_arrivals", "06_slots", "07_groups", "07_sums"]
    assert "tables of counts went out by your write and signal" in pieces["01_write_signal"]
    assert "rows found their place by your slots" in pieces["06_slots"] and "launches" in pieces["07_groups"]
    assert pieces["07_sums"].startswith("the library's (not begun")
    shown = repr(found)
    assert "3 of the 5 pieces" in shown and "every bit is right" in shown
    assert "not on this path: FP8 cast" in shown
    page = found._repr_html_()
    assert page.count("border:3px solid") == 3 and page.count("1px dashed") == 2 and 'role="img"' in page


def test_a_mistake_is_shown_with_whose_it_is(tmp_path: Path) -> None:
    file = mine_with(tmp_path, "06_slots") / "06_slots" / "ep" / "slots.cuh"
    text = file.read_text()
    assert text.count("return __popc(") == 1
    file.write_text(text.replace("return __popc(", "return 1 + __popc("))
    shown = repr(workshop.my_program(tmp_path))
    assert "came back: wrong." in shown and "The mistake is in:" in shown and "slots" in shown

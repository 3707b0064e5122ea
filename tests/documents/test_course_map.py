"""The map at the head of each notebook names what is there, and the notebooks show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT

import ep_lib
from ep_lib import errors, workshop
from ep_lib.workshop.course.course_map import MAIN_HOURS, STAGES, Stage, in_hours, paths

NOTEBOOKS = {path.stem.partition("_")[0]: path for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}


def test_it_names_files_of_the_library() -> None:
    package = Path(ep_lib.__file__).parent
    assert [file for stage in STAGES for file in stage.files if not (package / file).exists()] == []
    assert NOTEBOOKS.keys() == {stage.notebook for stage in STAGES}


def test_it_says_what_stands_and_what_is_added() -> None:
    shown = workshop.map("01")
    lines = repr(shown).split("\n")
    assert lines[1].startswith("  # 00 Start here") and lines[2].startswith("  > 01 Write and signal")
    assert lines[3].startswith("  . 01b For the curious, a side path")
    assert any(line.startswith("  your piece: 01_write_signal: Write, then signal") for line in lines)
    page = shown._repr_html_()
    assert page.count("<i>added here</i>") == 1 and page.count("<i>stands</i>") == 1
    with pytest.raises(errors.ArgumentError, match="no notebook '11'"):
        workshop.map("11")


def test_what_moved_to_another_notebook_is_there_and_nowhere_else() -> None:
    for name in ("01.4", "01_board", "01_write_signal", "10_plan", "02.1"):
        assert [stage.notebook for stage in STAGES if stage.has(name)] == [
            "01b" if name in ("01.4", "01_board") else name[:2]
        ]
    assert any("01_board" in piece for piece in workshop.map("01b").pieces)
    assert not any("01_board" in piece for piece in workshop.map("01").pieces)


def test_the_main_path_is_short_and_shown_everywhere() -> None:
    assert MAIN_HOURS <= 8
    assert f"<!-- table: paths -->\n{paths()}\n<!-- end of table -->" in (ROOT / "README.md").read_text()
    assert in_hours(MAIN_HOURS) in (ROOT / "docs" / "instructor.md").read_text()


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.notebook)
def test_a_notebook_says_where_it_stands(stage: Stage) -> None:
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOKS[stage.notebook].read_text())["cells"]]
    assert stage.line in " ".join(cells[0].split()) and f'workshop.map("{stage.notebook}")' in "\n".join(cells)

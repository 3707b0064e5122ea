"""The map at the head of each notebook names what is there, and the notebooks show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ep_lib
from ep_lib import errors, workshop
from ep_lib.workshop.course_map import STAGES

ROOT = Path(__file__).resolve().parents[1]


def test_it_names_files_of_the_library() -> None:
    package = Path(ep_lib.__file__).parent
    assert [file for stage in STAGES for file in stage.files if not (package / file).exists()] == []
    notebooks = {path.stem[:2] for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= {stage.notebook for stage in STAGES}


def test_it_says_what_stands_and_what_is_added() -> None:
    shown = workshop.map("01")
    lines = repr(shown).split("\n")
    assert lines[1].startswith("  # 00 Start here") and lines[2].startswith("  > 01 Write and signal")
    assert lines[3].startswith("  . 02 Host set-up")
    assert any(line.startswith("  your piece: 01_write_signal: Write, then signal") for line in lines)
    page = shown._repr_html_()
    assert page.count("<i>added here</i>") == 1 and page.count("<i>stands</i>") == 1
    with pytest.raises(errors.ArgumentError, match="no notebook '11'"):
        workshop.map("11")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_shows_its_own_map(path: Path) -> None:
    sources = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    if "workshop.map(" in sources:
        assert f'workshop.map("{path.stem[:2]}")' in sources

"""Links to the glossary lead to a term that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
LINKING = [*sorted((ROOT / "notebooks").glob("*.ipynb")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]


def terms() -> list[str]:
    return re.findall(r"^## (.+)$", GLOSSARY.read_text(encoding="utf-8"), re.M)


def test_terms_are_sorted_and_there_once() -> None:
    assert terms() == sorted(set(terms()), key=str.lower)


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.name)
def test_links_lead_to_terms(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    inside = re.findall(r"\]\(#([^)]+)\)", text) if path == GLOSSARY else []
    linked = {*re.findall(r"glossary\.md#([^)\"\\]+)", text), *inside}
    anchors = {term.lower().replace(" ", "-") for term in terms()}
    assert linked <= anchors, linked - anchors

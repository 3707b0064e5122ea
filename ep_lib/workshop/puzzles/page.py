"""The page with only the puzzles: notebooks/puzzles.ipynb, which ``python -m ep_lib.workshop.generate`` writes."""

from __future__ import annotations

import json
from typing import Any

from ep_lib.workshop import puzzles
from ep_lib.workshop.course_map import STAGES

NAME = "puzzles.ipynb"
_HEAD = """# All puzzles of the course. Each has two cells: the task, with hints that unfold, and
# yours. Run them with Shift+Enter. The notebook of that number explains what it needs."""


def _cell(kind: str, name: str, source: str) -> dict[str, Any]:
    ran = {"execution_count": None} if kind == "code" else {}
    out: dict[str, Any] = {"outputs": []} if kind == "code" else {}
    lines = source.splitlines(keepends=True)
    return {"cell_type": kind, **ran, "id": name, "metadata": {}, **out, "source": lines}


def as_notebook() -> str:
    """All puzzles, one after the other: the file's text. The first cell of each has the task, the second one is the
    learner's."""
    cells: list[dict[str, Any]] = []
    for stage in STAGES:
        own = [each for number in puzzles.notebooks() for each in puzzles.puzzles_of(number) if stage.has(each.number)]
        if cells and own:
            cells.append(_cell("markdown", f"of-{stage.notebook}", f"## {stage.notebook} {stage.title}"))
        for puzzle in own:
            name = f"puzzle-{puzzle.number.replace('.', '-')}"
            start = "" if cells else f"{_HEAD}\nfrom ep_lib import workshop\n\n"
            todo = "# your lines" if puzzle.is_python else "// your lines"
            cells.append(_cell("code", name, f'{start}workshop.puzzle("{puzzle.number}")'))
            cells.append(_cell("code", f"{name}-answer", f"%%puzzle {puzzle.number}\n{todo}"))
    spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": spec, "language_info": {"name": "python"}}
    page = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"

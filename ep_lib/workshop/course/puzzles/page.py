"""The page with only the puzzles, notebooks/puzzles.ipynb: ``python -m ep_lib.workshop.course.generate`` writes it."""

from __future__ import annotations

import json
from typing import Any

from ep_lib.workshop.course import puzzles
from ep_lib.workshop.course.course_map import STAGES

NAME = "puzzles.ipynb"
_HEAD = """# Puzzles

All puzzles of the course, for those who would rather type than read. Run a cell with
<kbd>Shift</kbd>+<kbd>Enter</kbd>: below it come the task and its hints. Write your lines, and run it again.
The notebook of that number explains what it needs."""
_START = "from ep_lib import workshop\n\nworkshop.my_progress()"


def _cell(kind: str, name: str, source: str) -> dict[str, Any]:
    ran = {"execution_count": None} if kind == "code" else {}
    out: dict[str, Any] = {"outputs": []} if kind == "code" else {}
    lines = source.splitlines(keepends=True)
    return {"cell_type": kind, **ran, "id": name, "metadata": {}, **out, "source": lines}


def as_notebook() -> str:
    """All puzzles, one after the other: the file's text. Each is the learner's cell, which shows the task, too."""
    cells = [_cell("markdown", "head", _HEAD), _cell("code", "start", _START)]
    for stage in STAGES:
        own = [each for number in puzzles.notebooks() for each in puzzles.puzzles_of(number) if stage.has(each.number)]
        if own:
            cells.append(_cell("markdown", f"of-{stage.notebook}", f"## {stage.notebook} {stage.title}"))
        for puzzle in own:
            name, mark = f"puzzle-{puzzle.number.replace('.', '-')}", "#" if puzzle.is_python else "//"
            source = f"%%puzzle {puzzle.number}\n{mark} {puzzle.title}\n{mark} your lines"
            cells.append(_cell("code", f"{name}-answer", source))
    spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": spec, "language_info": {"name": "python"}}
    page = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"

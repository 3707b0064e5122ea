"""Makes a submission from answer files: the solution, with the regions that the answers give in place of its own.

Answers to a piece in Python are .txt files, since regions alone are no Python.
"""

from __future__ import annotations

import re
from pathlib import Path

from ep_lib.workshop.exercises import Exercise

FOLDER = Path(__file__).parent
_REGION = re.compile(r"^ *(?://|#) EXERCISE-BEGIN (\w+)\n(.*?)^ *(?://|#) EXERCISE-END \1\n", re.MULTILINE | re.DOTALL)


def filled(exercise: Exercise, answer: str) -> set[str]:
    """The names of the regions that an answer gives; "top" is what it puts above all."""
    return _regions(exercise, answer).keys() - {"top"}


def _regions(exercise: Exercise, answer: str) -> dict[str, str]:
    suffix = ".txt" if exercise.pieces[0].endswith(".py") else ".cuh"
    return dict(_REGION.findall((FOLDER / exercise.name / f"{answer}{suffix}").read_text("utf-8")))


def submission(exercise: Exercise, answers: str | tuple[str, ...], folder: Path) -> Path:
    """Writes the pieces with ``answers`` (one answer file, or several for different holes) into ``folder``."""
    regions: dict[str, str] = {}
    top = ""
    for answer in (answers,) if isinstance(answers, str) else answers:
        found = _regions(exercise, answer)
        top += found.pop("top", "")
        assert found and not found.keys() & regions.keys(), f"{answer} has no regions, or those of another answer"
        regions |= found
    for piece in exercise.pieces:
        text = (exercise.solution_dir / piece).read_text("utf-8")
        text = _REGION.sub(lambda match: regions.pop(match[1], match[2]), text)
        at = text.index("\n", text.rindex("#include")) + 1 if top else 0
        (folder / piece).parent.mkdir(parents=True, exist_ok=True)
        (folder / piece).write_text(text[:at] + top + text[at:], "utf-8")
    assert not regions, f"{answers} have regions that the solution lacks: {list(regions)}"
    return folder

"""Answers to the exercises, right and wrong, and what the grader must make of the wrong ones.

A file an exercise: ``// === name: tasks that lose their points: words`` begins an answer, which gives regions of the
solution anew, each from a line ``// EXERCISE-BEGIN region: what is special`` to the next. Where lines of a region begin
with "-" or "+", they edit the solution as ``diff -u`` writes it: a hunk ("@@" between two) replaces the one place with
its lines. One of the ``words`` ("a|b") stands in the message of the first failing task. Those to a piece in Python are
.txt files, since regions alone are no Python.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from ep_lib.workshop.exercises import Exercise, find, names

_REGION = re.compile(r"^ *(?://|#) EXERCISE-BEGIN (\w+)\n(.*?)^ *(?://|#) EXERCISE-END \1\n", re.MULTILINE | re.DOTALL)
_BEGIN = re.compile(r"^ *(?://|#) EXERCISE-BEGIN (\w+)(?:: .*)?\n", re.MULTILINE)
_EDIT = re.compile(r"^[-+]", re.MULTILINE)
_HEAD = re.compile(r"^(?://|#) === (\w+)(?:: ([\d, ]+): (.*))?\n", re.MULTILINE)


class Answer(NamedTuple):
    """``regions``: what it gives anew of the solution; "top" goes above all."""

    regions: dict[str, str]
    loses: set[int]
    says: str


@functools.cache
def answers(exercise: str) -> dict[str, Answer]:
    """Those of an exercise, by their names: ``right_...`` and ``wrong_...``."""
    suffix = ".txt" if find(exercise).pieces[0].endswith(".py") else ".cuh"
    text = (Path(__file__).parent / f"{exercise}{suffix}").read_text("utf-8")
    before, *found = _HEAD.split(text)
    assert not before
    return {
        name: Answer(_regions(body), {int(task) for task in (tasks or "").split(",") if task}, says or "")
        for name, tasks, says, body in zip(*(found[at::4] for at in range(4)), strict=True)
    }


def _regions(body: str) -> dict[str, str]:
    _, *found = _BEGIN.split(body)
    return dict(zip(found[::2], found[1::2], strict=True))


def of_kind(kind: str) -> dict[str, dict[str, Answer]]:
    """All answers that are "right", or "wrong", by exercise."""
    return {
        name: {each: answer for each, answer in answers(name).items() if each.startswith(f"{kind}_")}
        for name in names()
    }


def submission(exercise: Exercise, given: str | tuple[str, ...], folder: Path) -> Path:
    """Writes the pieces with answers (one, or several for different holes) into ``folder``."""
    regions: dict[str, str] = {}
    top = ""
    for answer in (given,) if isinstance(given, str) else given:
        found = dict(answers(exercise.name)[answer].regions)
        top += found.pop("top", "")
        assert found and not found.keys() & regions.keys(), f"{answer} has no regions, or those of another answer"
        regions |= found
    for piece in exercise.pieces:
        text = (exercise.solution_dir / piece).read_text("utf-8")
        text = _REGION.sub(lambda match: _given(match[2], regions.pop(match[1], match[2])), text)
        at = text.index("\n", text.rindex("#include")) + 1 if top else 0
        (folder / piece).parent.mkdir(parents=True, exist_ok=True)
        (folder / piece).write_text(text[:at] + top + text[at:], "utf-8")
    assert not regions, f"{given} have regions that the solution lacks: {list(regions)}"
    return folder


def _given(solution: str, region: str) -> str:
    """A region of the solution as an answer has it."""
    if not _EDIT.search(region):
        return region
    given, at = "", 0
    for hunk in region.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
        assert solution.count(before) == 1, f"not one place has these lines:\n{before}"
        begin = solution.index(before, at)
        given += solution[at:begin] + after
        at = begin + len(before)
    return given + solution[at:]

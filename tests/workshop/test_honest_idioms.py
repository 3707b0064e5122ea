"""An honest answer loses no point to a word, an import or a name, and an instructor is hardly told of any."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from honest_idioms import Idiom, idioms, submission

from ep_lib.workshop.grader import grading
from ep_lib.workshop.grader.watched import look_through

PYTHON, CPP = idioms("python.txt"), idioms("cpp.txt")
MOST_FLAGGED = 3
EACH = 30  # idioms in one file: what two of them call alike is the later one's


def test_no_honest_idiom_is_refused_and_hardly_any_is_flagged(tmp_path: Path) -> None:
    flagged = {}
    for idiom in (*PYTHON, *CPP):
        exercise, mine = submission([idiom], tmp_path / idiom.exercise)
        refused, looks = look_through(exercise, mine)
        assert not refused, idiom
        flagged |= {idiom.name: looks} if looks else {}
    assert len(flagged) <= MOST_FLAGGED, flagged


def together() -> list[list[Idiom]]:
    """Idioms that one file holds: of one exercise, and no two in the place of one line."""
    files: list[list[Idiom]] = []
    for each in (*PYTHON, *CPP):
        for file in files:
            is_free = not each.instead or each.instead not in [other.instead for other in file]
            if file[0].exercise == each.exercise and len(file) < EACH and is_free:
                file.append(each)
                break
        else:
            files.append([each])
    return files


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.cuda_rules
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("pack", together(), ids=lambda pack: f"{pack[0].exercise}-{pack[0].name}")
def test_with_honest_idioms_a_right_answer_has_full_marks(pack: list[Idiom], tmp_path: Path) -> None:
    exercise, mine = submission(pack, tmp_path)
    found = grading.grade(exercise.name, mine, seed=1)
    assert found.full, (found.problem, [each.message for each in found.tasks if not each.passed])
    assert len(found.flags) <= MOST_FLAGGED, found.flags

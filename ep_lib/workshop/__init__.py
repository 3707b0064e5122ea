"""The workshop around the library: exercises and their checks, the demo, the doctor.

>>> from ep_lib import workshop
>>> workshop.start("01")     # doctest: +SKIP  copies the exercise to mine/01_write_signal, for you to edit
>>> workshop.check("01")     # doctest: +SKIP  runs the public checks on it, and says what is not right yet

Importing this package imports none of its modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_lib.workshop.grader import Grade


def start(exercise: str | int) -> Path:
    """Copies an exercise ("01" or "01_write_signal") to ``mine/``, unless it is there already; returns the folder."""
    from ep_lib.workshop import grader

    return grader.start(exercise)


def check(exercise: str | int, mine: Path | str | None = None) -> Grade:
    """Runs an exercise's public checks on your files and prints what works and what does not yet.

    ``mine`` is the folder with your files; by default ``mine/<exercise>``, or ``exercises/<exercise>`` where that does
    not exist. Your code runs in a process of its own: an endless loop or a crash cannot hurt the notebook. The public
    checks are few and small; ``ep-lib grade`` runs many more. GradingError for an unknown exercise or folder.
    """
    from ep_lib.workshop import grader

    result = grader.grade(exercise, mine, public=True)
    print(grader.as_text(result), end="")
    return result

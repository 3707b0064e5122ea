"""What several tests share: cases with their expected results, programs for the ranks, tables, stand-ins.

A test module imports from here and from ``wrong_variants`` and ``grader_answers``, never from another test module.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent  # of the repository

Spmd = Callable[..., list[Any]]  # the fixture of this name

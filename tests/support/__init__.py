"""What several tests share: cases with their expected results, programs for the ranks, tables, stand-ins.

A test module imports from here and from ``wrong_variants`` and ``grader_answers``, never from another test module.
"""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent  # of the repository

"""Modules that answer, grade or start programs are worth a look in a piece in Python; they cost no point."""

from __future__ import annotations

import pytest

from ep_lib.workshop.grader.watched import reaches

LOOKS = {
    "the oracle": ("import ep_lib\nwants = ep_lib.reference.layout(x)", "ep_lib.reference"),
    "the oracle, imported": ("from ep_lib import reference", "ep_lib.reference"),
    "the grader": ("from ep_lib.workshop import grader", "ep_lib.workshop"),
    "the grader, as a module": ("import ep_lib.workshop.grader.grading", "ep_lib.workshop"),
    "another program": ("from subprocess import run", "import subprocess"),
    "behind an encoding": ("# coding: raw_unicode_escape\n# \\u000aimport socket", "import socket"),
}


@pytest.mark.parametrize("code", LOOKS)
def test_such_a_module_is_told_with_its_first_line(code: str) -> None:
    text, word = LOOKS[code]
    first = reaches(f"{text}\n{text}\n".encode())[0]
    assert f": `{word}`: no exercise needs it" in first and int(first.partition(":")[0]) <= 2 + text.count("\n")


@pytest.mark.parametrize(
    "text", ["x = (", "x = " + "-" * 5000 + "1", "self.reference = socket = workshop = 'reference'"]
)
def test_of_what_is_no_python_and_of_variables_nothing_is_told(text: str) -> None:
    assert reaches(text.encode()) == []

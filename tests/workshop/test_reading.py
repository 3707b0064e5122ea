"""What was handed in is read in a process that can be stopped; and no text takes it long."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ep_lib.workshop.classroom import similar
from ep_lib.workshop.course.generate import version_of
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader import reading
from ep_lib.workshop.grader.process.sandbox import Stopped, stop_all
from ep_lib.workshop.grader.watched import look_through

BYTES = 1 << 16
# Each took minutes, by a pattern that begins anew at each character, or a list that is
# looked through for each token.
OF_MANY = {
    "blank lines": "\n",
    "spaces": " ",
    "brackets": "[",
    "attributes that do not end": "[[",
    "parentheses": "(",
    "comments that do not end": "/*",
    "joined lines": "\\\n",
    "comments on joined lines": "//\n\\\n",
    "quotes behind backslashes": '\\"',
    "empty texts": '""',
    "one name": "a",
    "names": "q ",
    "arguments": "int a(int x, ",
    "classes that are not closed": "struct a{}",
    "includes in one line": "#include<",
    "questions for headers": "__has_include ",
    "more assignments": "a=b;",
}
OF_PYTHON = {
    "names of names": "import math\na0 = math\n" + "".join(f"a{n + 1} = a{n}\n" for n in range(5000)),
    "names": "".join(f"a{n} = 1\n" for n in range(5000)),
    "blank lines": "\n" * BYTES,
}


def what_is_said(tmp_path: Path, name: str, text: str) -> str:
    """Of a piece, by what the grader calls for it; the limit counts CPU time."""
    exercise = find(name)
    piece = tmp_path / exercise.pieces[0]
    piece.parent.mkdir(exist_ok=True)
    piece.write_text(text)
    reading.read(similar.marks_of, name, {exercise.pieces[0]: text.encode()})
    refused: str = reading.read(look_through, exercise, tmp_path)[0]
    return refused


@pytest.mark.parametrize("many", OF_MANY)
def test_no_text_in_cpp_takes_long_to_read(tmp_path: Path, many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 4.0)
    text = "#define q z z\n" + OF_MANY[many] * (BYTES // len(OF_MANY[many]))
    assert "cannot be read" not in what_is_said(tmp_path, "01_write_signal", text)


@pytest.mark.parametrize("many", OF_PYTHON)
def test_no_text_in_python_takes_long_to_read(tmp_path: Path, many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 4.0)
    assert "cannot be read" not in what_is_said(tmp_path, "10_plan", OF_PYTHON[many])


def test_what_never_ends_or_ends_the_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.3)
    with pytest.raises(reading.Unreadable, match=r"takes more than 0\.3 s"):
        reading.read(re.search, "(a+)+$", "a" * 40 + "b")
    with pytest.raises(reading.Unreadable, match="exit code 3"):
        reading.read(os._exit, 3)
    with pytest.raises(reading.Unreadable, match="exit code 1"):
        reading.read(int, "no number")
    assert reading.read(len, "four") == 4


def test_reading_stops_with_the_grading() -> None:
    with stop_all(), pytest.raises(Stopped):
        reading.read(re.search, "(a+)+$", "a" * 40 + "b")


def test_a_version_is_no_endless_number() -> None:
    assert version_of("# Exercise 10_plan, version " + "9" * 5000) == 1

"""What is a comment and what a literal in C++: the lexer, with g++ as the judge."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ep_lib.jit.lexer import doubt, logical, without_comments

PARTS = [
    "//",
    "/*",
    "*/",
    "'",
    '"',
    'R"',
    'u8R"',
    'R"x(',
    ')x"',
    "(",
    ")",
    ')"',
    "\\",
    "\\\n",
    "\\ \n",
    "\n",
    "1'0",
    "0x1'",
    "1'",
    ".5",
]
PARTS += [
    "e+1'2",
    "1e",
    "a",
    "xR",
    "L",
    "u8",
    "x",
    "$",
    "/",
    "*",
    " ",
    "it's",
    "a.1'000'",
    '"/*"',
    "'//'",
    "<",
    ">",
    "\t",
    "ä",
    "²",
    "b;",
]


def by_the_compiler(text: str) -> str | None:
    """The text without comments and spaces, by g++; None if it does not take the text."""
    command = ["g++", "-std=c++17", "-E", "-P", "-w", "-x", "c++", "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    text = re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), done.stdout.decode())  # as g++ writes ä
    return re.sub(r"\s", "", text) if done.returncode == 0 and b"error" not in done.stderr else None


def by_us(text: str) -> str:
    return re.sub(r"\s", "", logical(text))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_comments_are_where_the_compiler_sees_them(text: str) -> None:
    text += "\n"
    assume(doubt(text) is None)
    if (told := by_the_compiler(text)) is not None:
        assert by_us(text) == told


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("int a = 1'000; char c = '\"'; f(\"/*\"); // x", "int a = 1'000; char c = '\"'; f(\"/*\");     "),
        ('R"(/*)" /* " */ b', 'R"(/*)"         b'),
        ('R"x(")" // )x" b', 'R"x(")" // )x" b'),
        ('xR"(/*)" b', 'xR"(/*)" b'),
        ("// a \\\n b\nc", "      \n  \nc"),
        ("/\\\n/ a\nc", "  \n   \nc"),
        ('"a\\\n// b" c', '"a\\\n// b" c'),
        ("a /* b", "a     "),
    ],
)
def test_nothing_moves(text: str, bare: str) -> None:
    found = without_comments(text, keep_strings=True)
    assert len(found) == len(text)
    assert found.replace("\\", " ") == bare.replace("\\", " ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#include <a/*b>\nasm", "the name of a header"),
        ("/* */ # /* */ include <it's>", "the name of a header"),
        ("#define X 1'\"'", "a quote behind a number"),
        ("int ²;", "U+00B2"),
        ('R"a b(x)"', "a raw string"),
    ],
)
def test_what_compilers_may_read_otherwise_is_named(text: str, why: str) -> None:
    found = doubt(text)
    assert found is not None and why in found[1]


def test_plain_code_leaves_no_doubt() -> None:
    assert (
        doubt("#include <ep/a.cuh> // it's <b>\nint größe = 1'000'000; auto s = u8R\"(x)\"; if (a < 'b' && c > 2) {}")
        is None
    )

"""Finds submissions that are similar to each other, or to the course's solution: a hint for the instructor, not a
verdict.

Code is compared by its marks: runs of six tokens inside of a function. Comments, white space, names (except functions
that the course calls), texts of messages and the order of functions do not count. Code of the given file is not the
learner's own. Code of the course's solution is not compared between learners either: two right answers are not copies
only because there is one way to write them.

The thresholds were measured on right answers that differ on purpose (tests/grader_answers). Those that fill all holes
share at most 27 % of their marks with the solution, except one that was made from it (84 %); two of them share at most
11 % of their marks outside of the solution. One idea that is unlike the solution's, in one or two tasks, is often below
60 marks; an answer that is unlike it throughout is above 70, in the shortest exercise, too.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ep_lib.workshop.classroom.gradebook import Standing
from ep_lib.workshop.course.puzzles import graded
from ep_lib.workshop.exercises import file_of_the_course, find
from ep_lib.workshop.grader.submission import without_marks

THE_SOLUTION = "the course's own solution"
_RUN = 6  # consecutive tokens per mark
_ENOUGH = 60  # a learner's own marks: with fewer there is no verdict, since two learners may share one short idea
_ALIKE = 0.75  # the least shared part of both submissions' marks
_THE_SAME = 0.85  # with so much in common, it is the solution with a few tokens changed
_KEYWORDS = frozenset(keyword.kwlist) | frozenset(
    (
        *("auto", "bool", "case", "char", "const", "constexpr", "default", "do", "double", "false", "float", "goto"),
        *("inline", "int", "long", "namespace", "nullptr", "short", "signed", "sizeof", "static", "struct", "switch"),
        *("template", "this", "true", "typename", "union", "unsigned", "using", "void", "volatile"),
    )
)
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z)|\#(?!\s*(?:include|define|pragma|if|else|endif|undef|error|line))[^\n]*)
        | (?P<text>"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?) | (?P<name>[^\W\d]\w*)
        | (?P<number>\d[\w.]*) | (?P<sign>\S)""",
    re.VERBOSE | re.DOTALL,
)


def marks_of(exercise: str, files: Mapping[str, bytes]) -> frozenset[int]:
    """A submission's own marks, as numbers to compare."""
    names, common = _of_the_course(exercise)
    return frozenset(_marks(files, names)) - common


def is_the_solution(exercise: str, files: Mapping[str, bytes]) -> bool:
    """Whether the files are the course's own: except for comments, names, the order of functions and a few tokens."""
    if graded.is_of_puzzles(exercise):
        return False  # the notebook shows it
    found = find(exercise)
    names, _ = _of_the_course(exercise)
    given = frozenset(_marks({piece: _read(found.exercise_dir / piece) for piece in found.pieces}, names))
    own = frozenset(_marks(files, names)) - given
    for folder in (found.solution_dir, file_of_the_course(found.runs_as, found.root)):
        solution = frozenset(_marks({piece: _read(folder / piece) for piece in found.pieces}, names)) - given
        if solution and len(own & solution) >= _THE_SAME * len(own | solution):
            return True
    return False


def twins(standings: Sequence[Standing], marks: Mapping[tuple[str, str], frozenset[int]]) -> dict[int, tuple[str, ...]]:
    """By attempt: other learners with a similar submission for that exercise. ``marks``: by digest, exercise."""
    found: dict[int, list[str]] = {}
    by_exercise = sorted(standings, key=lambda each: each.exercise)
    for _, group in itertools.groupby(by_exercise, key=lambda each: each.exercise):
        for one, other in itertools.combinations(group, 2):
            if _alike(marks.get((one.digest, one.exercise)), marks.get((other.digest, other.exercise))):
                found.setdefault(one.attempt, []).append(other.learner)
                found.setdefault(other.attempt, []).append(one.learner)
    return {attempt: tuple(sorted(names)) for attempt, names in found.items()}


def _alike(one: frozenset[int] | None, other: frozenset[int] | None) -> bool:
    if not one or not other or min(len(one), len(other)) < _ENOUGH:
        return False
    return len(one & other) >= _ALIKE * len(one | other)


@cache
def _of_the_course(exercise: str) -> tuple[frozenset[str], frozenset[int]]:
    """The functions that the course's files of an exercise call, and the marks of these files."""
    if graded.is_of_puzzles(exercise):
        texts = [graded.solutions(exercise)]
    else:
        found = find(exercise)
        folders = (found.exercise_dir, found.solution_dir, file_of_the_course(found.runs_as, found.root))
        texts = [{piece: _read(folder / piece) for piece in found.pieces} for folder in folders]
    names = frozenset(name for files in texts for text in files.values() for name in _called_in(text))
    return names, frozenset(mark for files in texts for mark in _marks(files, names))


def _called_in(text: bytes) -> Iterator[str]:
    tokens = [match for match in _TOKEN.finditer(_as_text(text)) if not match["comment"]]
    for token, after in itertools.pairwise(tokens):
        if token["name"] and after[0] == "(":
            yield token["name"]


def _marks(files: Mapping[str, bytes], names: frozenset[str]) -> Iterator[int]:
    for name, data in files.items():
        text = _as_text(data)
        parts = _parts_of_python(text) if name.endswith(".py") else _parts_of_cpp(text)
        for part in parts:
            tokens = [_normal(match, names) for match in _TOKEN.finditer(part) if not match["comment"]]
            for at in range(len(tokens) - _RUN + 1):
                yield _number("\0".join(tokens[at : at + _RUN]))


def _normal(token: re.Match[str], names: frozenset[str]) -> str:
    if token["text"]:
        return "a text"
    return "a name" if token["name"] and token[0] not in names | _KEYWORDS else token[0]


def _parts_of_python(text: str) -> list[str]:
    """Functions, classes and the code between them, in a normal form, without documentation."""
    try:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
            ) and ast.get_docstring(node, clean=False):
                node.body = node.body[1:] or [ast.Pass()]
        text = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # no Python: as it is
    return re.split(r"^(?=[^\S\n]*(?:@|def\b|async\s+def\b|class\b))", text, flags=re.MULTILINE)


def _parts_of_cpp(text: str) -> list[str]:
    """Functions, and the code between them: a function ends where a brace closes at the top level, or in a
    namespace."""
    parts, begin, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token["sign"] == "{") - (token["sign"] == "}")
        if token["sign"] == "}" and depth <= 1:
            parts.append(text[begin : token.end()])
            begin = token.end()
    return [*parts, text[begin:]]


def _as_text(data: bytes) -> str:
    return without_marks(data).decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""

"""Which submissions are alike: a hint for the instructor to look, and no verdict.

What a learner wrote is compared by what it has of its own: runs of tokens and comments that neither the given file nor
the course's solution has. All names count as the same, but for functions that the course calls, and the order of lines
and functions does not count. So renaming and rearranging hide nothing, and two short right answers are not "the same"
only because there is one way to write them.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ep_lib.workshop.exercises import file_of_the_course, find
from ep_lib.workshop.gradebook import Standing
from ep_lib.workshop.puzzles import graded

THE_SOLUTION = "the course's own solution"
_RUN = 6  # tokens in a row that are compared
_ENOUGH = 20  # marks of one's own, below which nothing is said
_ALIKE = 0.75  # of all marks of both that both have
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/|\#(?!\s*(?:include|define|pragma|if|else|endif|undef|error|line))[^\n]*)
        | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*') | (?P<name>[^\W\d]\w*)
        | (?P<number>\d[\w.]*) | (?P<sign>\S)""",
    re.VERBOSE | re.DOTALL,
)


def marks_of(exercise: str, files: Mapping[str, bytes]) -> frozenset[int]:
    """What a submission has of its own, as numbers to compare."""
    names, common = _of_the_course(exercise)
    return frozenset(_marks(files.values(), names)) - common


def is_the_solution(exercise: str, files: Mapping[str, bytes]) -> bool:
    """Whether the files are the course's own, but for white space."""
    if graded.is_of_puzzles(exercise):
        return False  # the notebook shows it
    found = find(exercise)
    folders = (found.solution_dir, file_of_the_course(found.runs_as, found.root))
    return any(
        all(
            data.removeprefix(codecs.BOM_UTF8).split() == _read(folder / piece).split() for piece, data in files.items()
        )
        for folder in folders
    )


def twins(standings: Sequence[Standing], marks: Mapping[tuple[str, str], frozenset[int]]) -> dict[int, tuple[str, ...]]:
    """By attempt, the other learners whose submission for that exercise is like it. ``marks``: by digest, exercise."""
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
        texts = list(graded.solutions(exercise).values())
    else:
        found = find(exercise)
        folders = (found.exercise_dir, found.solution_dir, file_of_the_course(found.runs_as, found.root))
        texts = [_read(folder / piece) for folder in folders for piece in found.pieces]
    names = frozenset(name for text in texts for name in _called_in(text))
    return names, frozenset(_marks(texts, names))


def _called_in(text: bytes) -> Iterator[str]:
    tokens = [match for match in _TOKEN.finditer(_as_text(text)) if not match["comment"]]
    for token, after in itertools.pairwise(tokens):
        if token["name"] and after[0] == "(":
            yield token["name"]


def _marks(texts: Iterable[bytes], names: frozenset[str]) -> Iterator[int]:
    for data in texts:
        tokens = []
        for match in _TOKEN.finditer(_as_text(data)):
            if comment := match["comment"]:
                words = re.findall(r"\w+", comment.lower())
                if len(words) > 2:
                    yield _number(" ".join(words))
            elif (name := match["name"]) and name not in names:
                tokens.append("a name")
            else:
                tokens.append(match[0])
        for at in range(len(tokens) - _RUN + 1):
            yield _number("\0".join(tokens[at : at + _RUN]))


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""

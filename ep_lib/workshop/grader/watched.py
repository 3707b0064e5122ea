"""Parts of a piece that the checker does not see, and others that an instructor should look at.

A piece must not switch the checker off, and memory that changes without a visible write is a mistake (unseen_bytes).
Code that bypasses the checker costs no points: the instructor sees a note about it, and about accesses that the
compiler left unwatched (:mod:`ep_lib.jit.unseen`). The same holds for a Python piece that uses modules which contain
answers, grade, or start programs; its process has nothing of a test (:mod:`ep_lib.workshop.grader.process.guest`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ep_lib.errors import BackendUnavailable
from ep_lib.jit.lexer import code_of
from ep_lib.jit.toolkit import find_compiler
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.grader.submission import reaches_out, source_text

# These hide reads from the sanitizer, which no other layer finds.
_SWITCHES_OFF = re.compile(r"(?:no_sanitiz|disable_sanitizer|no_address_safety)\w*")
_REACHES_BENEATH = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"\basm\b|\b__asm(?:__)?\b", "the checker does not see what assembly does"),
        (r"##|# #", "words that are pasted together cannot be read here"),
        (r"\b(?:__tsan|__ubsan|__asan|epemu|EPEMU)_?\w*|\bep_emulator\b", "it belongs to the emulator"),
        (r"\b__builtin_(?:frame|return|extract_return|apply|dwarf|longjmp)\w*", "it reaches frames of others"),
        (
            r"\b__builtin_\w*(?:mem|str|stp|bc|bz|cpy|_chk)\w*",
            "the checker does not see what it reads and writes: read and write by loads and stores of your own",
        ),
    )
)
_WORTH_A_LOOK = frozenset(("import subprocess", "import socket", "ep_lib.reference", "ep_lib.workshop"))  # in Python
_LONGEST_LINE = 4000  # characters; some lines are searched again for each word in them
_MOST_LOOKS = 20  # of a piece


def look_through(exercise: Exercise, mine: Path) -> tuple[str, list[str]]:
    """Why the pieces in ``mine`` are not run, or "", and places for an instructor to look at, without cost of points.
    Call it through :func:`ep_lib.workshop.grader.reading.read`, since it may take long."""
    refused, found = "", list(filter(None, [reaches_out(exercise, mine)]))
    for piece in exercise.pieces:
        if piece.endswith(".py"):
            found += [f"{piece}:{each}" for each in reaches((mine / piece).read_bytes())]
            continue
        text = code_of(source_text(mine / piece))
        if switch := _SWITCHES_OFF.search(text):
            refused = refused or _told(piece, text, switch, "it switches the checker off: leave it out")
        if max(map(len, text.split("\n"))) > _LONGEST_LINE:
            found.append(f"{piece}: a line has more than {_LONGEST_LINE} characters, so its words were not looked at")
            continue
        for pattern, why in _REACHES_BENEATH:
            if word := pattern.search(text):
                found.append(_told(piece, text, word, why))
    return refused, found[:_MOST_LOOKS]


def _told(piece: str, text: str, found: re.Match[str], why: str) -> str:
    return f"{piece}:{text.count(chr(10), 0, found.start()) + 1}: `{' '.join(found.group().split())}`: {why}."


def reaches(source: bytes) -> list[str]:
    """ "12: `ep_lib.reference`: ...", the first use of each module in _WORTH_A_LOOK, by line; empty for invalid Python.
    ``source``: bytes, since a file declares its own encoding."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # running it reports the error
        return []
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        for word in _WORTH_A_LOOK.intersection(_said(node)):
            lines[word] = min(lines.get(word, node.lineno), node.lineno)  # type: ignore[attr-defined]
    found = sorted((line, word) for word, line in lines.items())
    return [f"{line}: `{word}`: no exercise needs it; look what it is for" for line, word in found]


def _said(node: ast.AST) -> Iterator[str]:
    """The modules that a node names."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        for each in node.names:
            parts = (f"{module}.{each.name}" if module else each.name).split(".")
            yield from (f"import {parts[0]}", ".".join(parts[:2]))


def unwatched() -> tuple[str, ...]:
    """The accesses of pieces that the checker does not see with this machine's compiler, a sentence each."""
    try:
        is_clang = find_compiler().is_clang
    except BackendUnavailable:
        return ()  # nothing is graded then
    line = (
        "a submission can read memory unseen, by structs of more than 16 bytes that a call copies, and write by the "
        "processor's own instructions: clang++ does not say where they are; take g++"
    )
    return (line,) if is_clang else ()


def unseen_bytes(writes: NDArray[np.int64], changed: Iterable[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]) -> int:
    """The number of bytes that changed without a visible write. ``writes``: address and number of bytes of each;
    ``changed``: address, bytes before and after, of arrays."""
    begins, sizes = writes.T
    unseen = 0
    for address, before, after in changed:
        depth = np.zeros(before.size + 1, np.int64)
        np.add.at(depth, np.clip(begins - address, 0, before.size), 1)
        np.add.at(depth, np.clip(begins + sizes - address, 0, before.size), -1)
        unseen += int(np.sum((before != after) & (np.cumsum(depth)[:-1] == 0)))
    return unseen

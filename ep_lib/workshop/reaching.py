"""What of a piece in Python an instructor should look at: words by which Python reaches what it was not handed.

They cost no point, and they are no wall: the walls around the process are the kernel's, and expected values are in
another process. A piece that changes the records of its own process could gain the points of that exercise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Attributes, names and what is imported: frames and what functions hold, all objects, traces, other programs, and of
# the library what grades and what answers.
_WORTH_A_LOOK = frozenset(
    (
        *("__closure__", "__code__", "__globals__", "__subclasses__", "cell_contents", "currentframe", "_getframe"),
        *("_current_frames", "tb_frame", "gi_frame", "f_back", "f_globals", "f_locals"),
        *("get_objects", "get_referrers", "get_referents", "settrace", "setprofile", "addaudithook"),
        *("from_address", "from_source", "import subprocess", "import socket", "ep_lib.reference", "ep_lib.workshop"),
    )
)
_WHY = "no exercise needs it; look whether it reaches for the tests"


def reaches(source: bytes) -> list[str]:
    """ "12: `tb_frame`: ...", the first use of each such word, by line; nothing of what is no Python. ``source``: the
    bytes, since a file says itself how Python is to read it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what runs it says so
        return []
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        for word in _WORTH_A_LOOK.intersection(_said(node)):
            lines[word] = min(lines.get(word, node.lineno), node.lineno)  # type: ignore[attr-defined]
    return [f"{line}: `{word}`: {_WHY}" for line, word in sorted((line, word) for word, line in lines.items())]


def _said(node: ast.AST) -> Iterator[str]:
    """The names of attributes and of imports that a node says itself, also as the text that getattr() takes."""
    if isinstance(node, ast.Attribute):
        yield node.attr
        if isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        for each in node.names:
            yield each.name
            parts = (f"{module}.{each.name}" if module else each.name).split(".")
            yield from (f"import {parts[0]}", ".".join(parts[:2]))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("__"):
        yield node.value

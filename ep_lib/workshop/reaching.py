"""Parts of a Python piece that an instructor should look at: uses of modules that contain answers, grade, or start
programs.

It costs no points and is no wall: a piece's process has nothing of a test (:mod:`ep_lib.workshop.guest`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_WORTH_A_LOOK = frozenset(("import subprocess", "import socket", "ep_lib.reference", "ep_lib.workshop"))
_WHY = "no exercise needs it; look what it is for"


def reaches(source: bytes) -> list[str]:
    """ "12: `ep_lib.reference`: ...", the first use of each such module, by line; empty for invalid Python. ``source``:
    bytes, since a file declares its own encoding."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # running it reports the error
        return []
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        for word in _WORTH_A_LOOK.intersection(_said(node)):
            lines[word] = min(lines.get(word, node.lineno), node.lineno)  # type: ignore[attr-defined]
    return [f"{line}: `{word}`: {_WHY}" for line, word in sorted((line, word) for word, line in lines.items())]


def _said(node: ast.AST) -> Iterator[str]:
    """The modules that a node names."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        for each in node.names:
            parts = (f"{module}.{each.name}" if module else each.name).split(".")
            yield from (f"import {parts[0]}", ".".join(parts[:2]))

"""Rules of the tests themselves."""

from __future__ import annotations

import ast

from support import TESTS

LONGEST_NAME = 69


def test_modules_do_not_import_each_other_and_names_are_short() -> None:
    """What tests share lies in support/, wrong_variants/ and grader_answers/."""
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            place = f"{file.relative_to(TESTS)}:{getattr(node, 'lineno', 0)}"
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > LONGEST_NAME:
                found.append(f"{place}: {node.name} has {len(node.name)} characters")
            if any(name.startswith("test_") for name in names):
                found.append(f"{place}: imports {', '.join(names)}")
    assert not found

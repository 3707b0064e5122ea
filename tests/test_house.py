"""Rules of the tests themselves."""

from __future__ import annotations

import ast

from support import TESTS

LONGEST_NAME = 69


def test_no_test_module_imports_another() -> None:
    """What tests share lies in support/, wrong_variants/ and grader_answers/."""
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            if any(name.split(".")[0].startswith("test_") for name in names if name.split(".")[0] != "test_"):
                found.append(f"{file.relative_to(TESTS)}:{node.lineno}: {', '.join(names)}")
    assert not found


def test_names_of_tests_are_short() -> None:
    found = [
        f"{file.name}:{node.lineno}: {node.name} has {len(node.name)} characters"
        for file in sorted(TESTS.glob("test_*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > LONGEST_NAME
    ]
    assert not found

"""The variable that a program assigns the result of a call to: ``data`` in ``data = rank.symmetric(64, "i4")``."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from ep_lib.callers import outer_frame, place

_Span = tuple[int | None, int | None, int | None, int | None]  # first and last line, first and last column


def name_of_result() -> tuple[str, str]:
    """What the innermost call from outside of ep_lib is assigned to ("" if that is not seen), and ``file:line``."""
    frame = outer_frame()
    code = frame.f_code
    first, last, begin, end = list(code.co_positions())[frame.f_lasti // 2]
    source = "".join(linecache.getlines(code.co_filename))
    return _names(source).get((first, last, begin, end), ""), place(code.co_filename, first or 0)


@functools.lru_cache(maxsize=16)
def _names(source: str) -> dict[_Span, str]:
    """By where a call stands in the source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a notebook's magic, for example
        return {}
    return {
        (value.lineno, value.end_lineno, value.col_offset, value.end_col_offset): name
        for node in ast.walk(tree)
        for name, value in _assignments(node)
        if isinstance(value, ast.Call)
    }


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield ast.unparse(node.target), node.value
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _pairs(each, part)
    else:
        yield ast.unparse(target), value

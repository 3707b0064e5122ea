"""Finds the ``__global__`` functions of a source by reading it, for messages about wrong names.

The compiler decides whenever the text is unclear (kernels made by macros).
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ep_lib.errors import KernelNotFoundError
from ep_lib.jit.lexer import without_comments
from ep_lib.jit.source import KernelSource

_GLOBAL = re.compile(r"\b__global__\b")
_PLAIN = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\([^)\n]*\) )?(\w+)\(', re.MULTILINE)
_MAKER = re.compile(
    r'^#define (\w+)\((\w+)\) extern "C" __global__ void \2\(', re.MULTILINE
)  # a macro for such kernels
_CONDITION = re.compile(r"^[ \t]*#[ \t]*if", re.MULTILINE)
_WORD = re.compile(r"\s*([A-Za-z_]\w*)\s*")
_TAKES_PARENTHESES = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__", "__attribute__"}
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_TO_A_BRACE = re.compile(r"[^{};]*[{};]")
_CONTROL = re.compile(r"\s*(?:if|else|for|while|do|switch|case|default|try|catch)\b")  # of statements in functions
_END_OF_SPACE = re.compile(r"}\s*//.*\b(?:namespace|extern)\b")
_SPACE = re.compile(r"\s*(?:(?:inline\s+)?namespace\b|extern\s*\"[^\"]*\"\s*$)")


class GlobalFunctions(NamedTuple):
    """``names`` in order of appearance, the ``templates`` among them, and whether the list is complete."""

    names: tuple[str, ...]
    templates: frozenset[str]
    is_complete: bool


def base_name(expression: str) -> str:
    """``copy`` of ``ep::copy<float, ns::T>``."""
    return expression.partition("<")[0].strip().rpartition("::")[2].strip()


def unclosed_brace(source: str) -> int | None:
    """The line of an unclosed ``{``, or None if all are closed.

    Which of several it is, only the author knows. Indentation is the best hint: a ``}`` further left than the statement
    of the innermost open ``{`` was meant for another one, and so was the end of a function that another function
    follows at the same indentation.
    """
    open_braces: list[tuple[int, int, bool]] = []  # line, indentation, whether functions may be inside
    suspect = None
    lines = source.splitlines()
    code = _DIRECTIVE.sub("", without_comments(source))
    number = 1
    for match in _TO_A_BRACE.finditer(code):
        words, brace = match.group()[:-1], match.end() - 1
        number += words.count("\n")
        if code[brace] == "{":
            indentation, is_first = _indentation(code, brace - len(words.lstrip()))
            if open_braces and suspect is None and is_first and not _CONTROL.match(words):
                around, its_indentation, holds_functions = open_braces[-1]
                suspect = around if indentation <= its_indentation and not holds_functions else None
            open_braces.append((number, indentation, _SPACE.match(words) is not None))
        elif code[brace] == "}" and open_braces:
            opened, its_indentation, is_space = open_braces.pop()
            indentation, is_first = _indentation(code, brace)
            is_anothers = (is_first and indentation < its_indentation) or (
                not is_space and _END_OF_SPACE.search(lines[number - 1])
            )
            if is_anothers and suspect is None:
                suspect = opened
    return (suspect or open_braces[-1][0]) if open_braces else None


def _indentation(code: str, at: int) -> tuple[int, bool]:
    """The indentation of a word's line, and whether it is the line's first word."""
    before = code[code.rfind("\n", 0, at) + 1 : at]
    return len(before) - len(before.lstrip()), not before.strip()


def unfinished_end(source: str) -> int | None:
    """The last line of code, if it does not end like a declaration; macros that need no semicolon are not known."""
    code = without_comments(source)
    lines = [(number, line.strip()) for number, line in enumerate(code.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    return lines[-1][0] if lines and lines[-1][1][-1] not in ";}" else None


def find_global_functions(texts: Iterable[str]) -> GlobalFunctions:
    """The ``__global__`` functions in some sources."""
    names: dict[str, None] = {}
    templates: set[str] = set()
    macros: set[str] = set()
    is_complete = True
    for text in texts:
        code = without_comments(text)
        for macro, body in _MACRO.findall(code):
            macros.add(macro)
            is_complete = is_complete and "__global__" not in body
        code = _MACRO.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
        for match in _GLOBAL.finditer(code):
            name = _name_after(code, match.end())
            if name is None:
                is_complete = False
                continue
            names[name] = None
            begin = max(code.rfind(mark, 0, match.start()) for mark in ";{}")
            if re.search(r"\btemplate\b", code[begin + 1 : match.start()]):
                templates.add(name)
    return GlobalFunctions(tuple(names), frozenset(templates), is_complete and not macros & names.keys())


def compiled_together(kernel: KernelSource) -> tuple[str, ...]:
    """The kernels that are compiled together: all extern "C" kernels of ``kernel``'s source, if it is one of them,
    written out or by a macro that takes only the name.

    It is alone if it is a template, or if the preprocessor may leave some of them out.
    """
    found = _plain_kernels(kernel.source)
    return found if kernel.name in found else (kernel.name,)


@functools.lru_cache(256)
def _plain_kernels(source: str) -> tuple[str, ...]:
    """The extern "C" kernels; none if there are preprocessor conditions."""
    code = without_comments(source)
    if _CONDITION.search(code):
        return ()
    made = (re.compile(rf"^{maker[1]}\((\w+)\)", re.MULTILINE) for maker in _MAKER.finditer(source))
    plain = [m for pattern in (_PLAIN, *made) for m in pattern.finditer(source) if code[m.start()] == m[0][0]]
    return tuple(dict.fromkeys(match[1] for match in plain))


def _name_after(code: str, position: int) -> str | None:
    """The function's name: the first word before a parameter list."""
    while word := _WORD.match(code, position):
        position = word.end()
        follows = code[position : position + 1]
        if word.group(1) in _TAKES_PARENTHESES and follows == "(":
            position = _closing(code, position)
        elif follows in ("(", "<"):
            return word.group(1)
    return None


def _closing(code: str, position: int) -> int:
    """Just behind the parenthesis that closes the one at ``position``."""
    depth = 0
    for index in range(position, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index], 0)
        if depth == 0:
            return index + 1
    return len(code)


def check(kernel: KernelSource, headers: Iterable[Path]) -> GlobalFunctions:
    """Raises :class:`KernelNotFoundError` when the kernel's name is certainly not that of a ``__global__`` function.

    ``headers`` are the files that the source includes, without CUDA's. Returns what it found.
    """
    texts = (header.read_text(encoding="utf-8", errors="replace") for header in headers)
    found = find_global_functions([kernel.source, *texts])
    if found.is_complete and base_name(kernel.name) not in found.names:
        raise not_found(kernel, found)
    return found


def not_found(kernel: KernelSource, found: GlobalFunctions) -> KernelNotFoundError:
    """The error for a wrong name: the existing kernels, and the one that was perhaps meant."""
    name = base_name(kernel.name)
    own = find_global_functions([kernel.source]).names
    listed = [*own, *(other for other in found.names if other not in own)]
    if not listed:
        what = (
            "no __global__ functions at all" if found.is_complete else "kernels made by macros, but none of that name"
        )
        return KernelNotFoundError(f"no kernel {name!r}: {kernel.filename} has {what}")
    shown = ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")
    is_other_function = re.search(rf"\b{re.escape(name)}\s*\(", without_comments(kernel.source))
    problem = f"{name!r} is not a __global__ function of" if is_other_function else f"no kernel {name!r} in"
    close = difflib.get_close_matches(name, listed, n=1)
    meant = f". Did you mean {close[0]!r}?" if close else "."
    return KernelNotFoundError(f"{problem} {kernel.filename}{meant} Its __global__ functions: {shown}")

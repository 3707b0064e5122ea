"""Removes the host's part of a source: functions, variables and types that no GPU code names.

nvcc compiles whole programs, so files that users paste contain a `main`, allocations and launches. Neither g++, which
knows no `<<<`, nor NVRTC, which has no host, can compile these, and no kernel needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ep_lib.jit.cuda_source import blank, matching
from ep_lib.jit.lexer import without_attempts, without_comments

_WORD = re.compile(r"[A-Za-z_]\w*")
_SPACE = re.compile(r"(?:(?:inline\s+)?namespace\b[^;{}=()]*|extern\s*)\{")
_TEMPLATE = re.compile(r"(?:template\s*<[^;{}]*?>\s*)+(?=[\w:\[])")
_TYPE = re.compile(r"\s*(?:typedef\s+)?(?:struct|class|union|enum)\b")
_BEFORE_PARAMETERS = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NAME_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^;{}()]*>\s*)?$")
_LAST_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:$|[\[{;])")
_ARGUMENTS = re.compile(r"<(?:[^<>;{}()]|\(\))*>")  # of templates, after the contents of parentheses were removed
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\.)*)", re.MULTILINE | re.DOTALL)
_KEPT = re.compile(r"^[ \t]*#[ \t]*(?!pragma)(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_FOR_GPUS = {"__global__", "__device__", "__constant__", "__shared__", "__managed__"}
_TAKE_PARENTHESES = {"__attribute__", "__align__", "alignas", "alignof", "decltype", "noexcept", "sizeof", "explicit"}
_IN_HEADS = _TAKE_PARENTHESES | {
    "typedef",
    "struct",
    "class",
    "union",
    "enum",
    "final",
    "public",
    "private",
    "protected",
}
_NO_DECLARATION = re.compile(r"^(?:using\s+namespace|namespace|static_assert|asm|__asm__)\b")
_CATCH = re.compile(r"catch\b")
_OPERATOR = "operator"


class _Declaration(NamedTuple):
    """``text[begin:end]``, and the names it declares; one without names stays."""

    begin: int
    end: int
    names: set[str]
    words: set[str]


def set_aside(text: str) -> str:
    """``text`` with spaces in place of host-only declarations, as far as brackets allow; lines keep their numbers."""
    code = _without_attempts(text)
    if any(code.count(opening) != code.count(closing) for opening, closing in ("{}", "()")):
        return text  # preprocessor branches that each hold a part
    found = [_read(code, begin, end) for begin, end in _declarations(code, 0, len(code))]
    declared = set[str]().union(*(each.names for each in found)) - {_OPERATOR}
    # An operator is not called by name: it belongs to the types that it takes.
    found = [each._replace(names=each.words & declared) if _OPERATOR in each.names else each for each in found]
    defines = _DEFINE.findall(without_comments(text))
    macros = {name: set(_WORD.findall(body)) for name, body in defines}
    for_gpus = set(_FOR_GPUS)
    for name, words in macros.items():
        if words & for_gpus:
            for_gpus.add(name)
    left = [each for each in found if each.names and not each.words & for_gpus]
    reached = set[str]().union(*(each.words for each in found if each not in left))
    count = -1
    while count != len(reached):
        count = len(reached)
        reached.update(*(words for name, words in macros.items() if name in reached))
        reached.update(*(each.words for each in left if each.names & reached))
    for each in left:
        if not each.names & reached:
            text = text[: each.begin] + _emptied(text[each.begin : each.end]) + text[each.end :]
    return text


def _without_attempts(text: str) -> str:
    """The code of ``text``, with spaces for everything else, and for code in `#if 0`."""
    left = without_attempts(without_comments(text)).split("\n")
    lines = zip(blank(text).split("\n"), left, strict=True)
    return "\n".join(line if kept else " " * len(line) for line, kept in lines)


def _emptied(text: str) -> str:
    """Only the preprocessor's lines of ``text``."""
    parts, at = [], 0
    for kept in _KEPT.finditer(without_comments(text)):
        parts += [re.sub(r"[^\n]", " ", text[at : kept.start()]), text[kept.start() : kept.end()]]
        at = kept.end()
    return "".join([*parts, re.sub(r"[^\n]", " ", text[at:])])


def _declarations(code: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """The declarations at namespace scope: where each begins and ends."""
    while (at := _skip(code, at)) < end:
        if code[at] == "}":
            at += 1
        elif space := _SPACE.match(code, at):
            closing = matching(code, space.end() - 1)
            yield from _declarations(code, space.end(), closing)
            at = closing + 1
        else:
            stop = min(_end(code, at), end)
            yield at, stop
            at = stop


def _end(code: str, begin: int) -> int:
    """The end of the declaration at ``begin``, behind its `;`, or the `}` of a function."""
    macro = _WORD.match(code, begin)
    if macro and macro[0] not in _TAKE_PARENTHESES and code.startswith("(", _skip(code, macro.end())):
        behind = matching(code, code.index("(", begin)) + 1
        if _WORD.match(code, _skip(code, behind)):
            return behind  # the call of a macro, which needs no `;`
    template = _TEMPLATE.match(code, begin)
    at, is_function = template.end() if template else begin, False
    while at < len(code):
        char = code[at]
        if char == ";":
            return at + 1
        if char == "=" and not code[begin:at].rstrip("=!<> ").endswith("operator"):
            return code.find(";", _past_brackets(code, at)) + 1 or len(code)
        if char in "([{":
            if char == "(":
                named = _NAME_BEFORE.search(code[begin:at])
                is_function = is_function or (named is not None and named[1] not in _TAKE_PARENTHESES)
                is_function = is_function or _OPERATOR in code[begin:at]
            closing = matching(code, at)
            after = _skip(code, closing + 1)
            goes_on = code[after : after + 1] in (",", "{") or _CATCH.match(code, after)
            if char == "{" and is_function and not goes_on:
                return closing + 1
            at = closing
        at += 1
    return at


def _past_brackets(code: str, at: int) -> int:
    """The first `;` from ``at`` on outside of brackets, or the end."""
    while at < len(code) and code[at] != ";":
        at = matching(code, at) + 1 if code[at] in "([{" else at + 1
    return at


def _skip(code: str, at: int) -> int:
    while at < len(code) and code[at].isspace():
        at += 1
    return at


def _read(code: str, begin: int, end: int) -> _Declaration:
    text = code[begin:end]
    words = set(_WORD.findall(text))
    template = _TEMPLATE.match(text)
    at = template.end() if template else 0
    outside = ""  # the text outside of brackets, and the brackets
    while at < len(text) and text[at] != "=":
        outside += text[at]
        if text[at] in "([{":
            at = matching(text, at)
            outside += text[at]
        at += 1
    while _ARGUMENTS.search(outside):
        outside = _ARGUMENTS.sub("", outside)
    functions = {match[1] for match in _BEFORE_PARAMETERS.finditer(outside)} - _TAKE_PARENTHESES
    is_typedef_or_macro = functions and (outside.startswith("typedef") or _BEFORE_PARAMETERS.match(outside))
    if _NO_DECLARATION.search(outside) or is_typedef_or_macro:
        names = set()
    elif re.search(rf"\b{_OPERATOR}\b", outside):
        names = {_OPERATOR}
    elif functions:
        names = functions
    elif _TYPE.match(outside):
        names = (words if "enum" in outside else set(_WORD.findall(outside))) - _IN_HEADS
    else:
        names = {match[1] for part in outside.split(",") if (match := _LAST_NAME.search(part))}
    return _Declaration(begin, end, names, words)

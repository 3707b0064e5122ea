"""A hidden test in C++ as it is compiled: no piece can take its calls, whatever the piece declares.

A piece stands before the test in one translation unit, and C++ looks for the functions that the test calls among all
that it has seen. So

    the test's own names   have an ending that follows from the piece's own text: nobody can write a piece with the
                           digest of that piece in it; its kernels, which every file sees as in C, too. And they are in
                           a namespace so named, and in no unnamed one, which a piece would share
    the library's names    are those of grader.cuh's ``namespace held``, which stands before the piece: a
                           using-declaration means what was declared until then
    the kernels' entries   are made by a copy of <ep/detail/entry.cuh> under such a name, and by its lines once more
                           behind the test, free of a piece's macros

Lines and comments stay as they are; messages show the names without the endings (:func:`plain`).
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ep_lib.jit import sealed, toolkit
from ep_lib.jit.lexer import without_comments

SHARED = "grader.cuh"
_INCLUDES_SHARED = re.compile(rf"^#include <{SHARED}>$", re.MULTILINE)
# Before all else: that kernels see the test's namespace. The header is included so that it is not once more at the end.
_FIRST = "#include <ep/detail/entry.cuh>\nnamespace test_{0} {{}}\nusing namespace test_{0};\n"
_ENTRY = toolkit.DEVICE_INCLUDE / "ep/detail/entry.cuh"
_ENTRY_LINES = "#ifdef EP_EMULATOR\n#define EP_KERNEL_ENTRY"
_HELD = re.compile(r"^namespace held \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_USING = re.compile(r"\busing (?:ep::(?:\w+::)?|::)(\w+);")
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|[^\s\w]")
_NAME = re.compile(r"(?<!\.)(?<!->)(?<!::)(?<!\w)(?:ep::)?(?:detail::|ibgda::)?([A-Za-z_]\w*)\b")
_AS_IT_IS = re.compile(r"^(?:#include|template (?!<))[^\n]*", re.MULTILINE)
_USED = re.compile(r"\s*\(|<\w[\w ]*>\(")
_UNNAMED = re.compile(r"^namespace \{", re.MULTILINE)
_KERNEL = re.compile(r"\bextern \"C\" __global__ void (\w+)\(")
_BEHIND_A_NAME = frozenset("({=[;")
_DECLARES_NONE = frozenset(("(", "=", "__global__", "using", "namespace", "extern"))
_ENDING = re.compile(r"held_[0-9a-f]{32}::|_[0-9a-f]{32}(?![0-9a-f])")


def without_held(code: str) -> str:
    """A test's code without the lines that bind names, which are not its own calls."""
    return _AS_IT_IS.sub("", _HELD.sub("", code))


def put_together(test: Path, mine: Path, kernel: str) -> tuple[str, str]:
    """The text of a hidden test for the pieces in the folder ``mine``, and what ``kernel`` is called in it."""
    text = sealed.opened(test.read_text("utf-8"))
    if not (included := _INCLUDES_SHARED.search(text)):
        return text, kernel
    shared = test.with_name(SHARED)
    header = sealed.opened(shared.read_text("utf-8"))
    ending, (held, own) = _digest(mine), _names(header, text)
    begin = renamed(header, ending, held, own)
    text = f"{text[: included.start()]}{' ' * len(included.group())}{text[included.end() :]}"
    text = renamed(text, ending, held, own)
    types, lines = _entry(ending)
    first = f"{_FIRST.format(ending)}{types}"
    return f'{first}#line 1 "{shared}"\n{begin}\n#line 1 "{test}"\n{text}\n{lines}', f"{kernel}_{ending}"


def _entry(ending: str) -> tuple[str, str]:
    """What calls the test's kernels, once more under a name of this piece's test: no piece specialises that. And the
    lines behind the test by which kernels get it, with all words of theirs as they were before the piece's macros."""
    types, begin, lines = _ENTRY.read_text("utf-8").partition(_ENTRY_LINES)
    own = f"entry_{ending}"
    types = types.replace("#pragma once", "").replace("namespace ep::detail", f"namespace {own}")
    lines = (begin + lines).replace("ep::detail::Entry", f"{own}::Entry")
    words = sorted(set(_TOKEN.findall(without_comments(lines))) - {"define", "ifdef", "else", "endif", "EP_EMULATOR"})
    undefined = "".join(f"#undef {word}\n" for word in words if word.isidentifier() and word != "__VA_ARGS__")
    return types, undefined + lines


def plain(text: str) -> str:
    """A message without the endings."""
    return _ENDING.sub("", text)


def _digest(mine: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(each for each in mine.rglob("*") if each.is_file()):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(mine)}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()[:32]


@functools.lru_cache(64)
def _names(shared: str, test: str) -> tuple[frozenset[str], frozenset[str]]:
    """What of the library is held, and what the test and its header declare."""
    held = {name for text in (shared, test) for block in _HELD.findall(text) for name in _USING.findall(block)}
    own = {name for text in (shared, test) for name in (*declared(text), *_KERNEL.findall(text))}
    return frozenset(held), frozenset(own - held)


def declared(text: str) -> Iterator[str]:
    """The functions, types, enumerators and constants of namespaces of a test; not its kernels."""
    code = _DIRECTIVE.sub("", _HELD.sub("", without_comments(text)))
    statement: list[str] = []
    scopes: list[str] = []  # "namespace", "enum", or the bracket
    for token in _TOKEN.findall(code):
        inside = scopes[-1] if scopes else "namespace"
        if inside == "namespace" and token in _BEHIND_A_NAME:
            yield from _declares(statement, token)
        elif inside == "enum" and statement[-1] in "{,":
            yield token
        if token in "({":
            kinds = (each for each in ("namespace", "enum") if token == "{" and each in statement)
            scopes.append(next(kinds, token))
            statement = [] if scopes[-1] == "namespace" else [*statement, token]
        elif token in ")}":
            scopes.pop()
            statement = statement if token == ")" else []
        else:
            statement = [] if inside == "namespace" and token == ";" else [*statement, token]


def _declares(statement: list[str], behind: str) -> Iterator[str]:
    """What a declaration that goes on with this declares."""
    if len(statement) < 2 or _DECLARES_NONE & set(statement) or not statement[-1].isidentifier():
        return
    if behind == "(" or statement[-2] in ("struct", "enum") or "constexpr" in statement:
        yield statement[-1]


def renamed(text: str, ending: str, held: frozenset[str], own: frozenset[str]) -> str:
    """The text with the endings."""
    code = without_comments(text)
    parts, at = [], 0
    blocks = [found.span() for pattern in (_HELD, _AS_IT_IS) for found in pattern.finditer(code)]
    for found in _NAME.finditer(code):
        name = found[1]
        if _is_in(found.start(), blocks) and name != "held":
            continue
        if name == "held" or (name in own and found.start(1) == found.start()):
            parts += [text[at : found.start(1)], f"{name}_{ending}"]
        elif name in held and _USED.match(code, found.end()):
            parts += [text[at : found.start()], f"held_{ending}::{name}"]
        else:
            continue
        at = found.end()
    return _UNNAMED.sub(f"namespace test_{ending} {{", "".join([*parts, text[at:]]))


def _is_in(position: int, spans: list[tuple[int, int]]) -> bool:
    return any(begin <= position < end for begin, end in spans)

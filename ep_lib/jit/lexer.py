"""Finds comments and literals of C++17 as a compiler does: digit separators, raw strings, joined lines."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_JOINED = re.compile(r"\\[ \t\f\v]*\n")  # compilers let spaces follow the backslash
_TOKEN = re.compile(
    r"""(?P<comment> //[^\n]* | /\*.*?(?:\*/|\Z) )
      | (?P<raw> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\( )
      | (?P<literal> "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? )
      | (?P<number> \.?[0-9](?: [eEpP][+-] | '[A-Za-z0-9_] | [\w$.] )* )
      | (?P<word> [^\W0-9][\w$]* | \$[\w$]* )""",
    re.DOTALL | re.VERBOSE,
)
_SUFFIX = re.compile(r"(?:[^\W0-9][\w$]*)?")
_DIGRAPHS = {"<:": "[", ":>": "]", "<%": "{", "%>": "}", "%:": "#"}
_DIGRAPH = re.compile("<:(?!:(?![:>]))|:>|<%|%>|%:")  # "<::" is two tokens, "<" and "::", as in a template of ::x
_CONDITION = re.compile(r"\s*(?:#|%:)\s*(if|el|endif)")
_NEVER = re.compile(r"[ \t]*#[ \t]*if[ \t]+0[ \t]*$")


class Piece(NamedTuple):
    """A comment or a literal: ``text[begin:end]``."""

    begin: int
    end: int
    is_comment: bool
    is_raw: bool = False


@functools.lru_cache(256)  # every kernel of a source, and every source that includes a header, needs it
def without_comments(text: str, *, keep_strings: bool = False) -> str:
    """The code with comments and literals as spaces, or with ``keep_strings`` only comments; positions stay."""
    parts, at = [], 0
    for piece in _pieces(text):
        if piece.is_comment or not keep_strings:
            parts += [text[at : piece.begin], re.sub(r"[^\n]", " ", text[piece.begin : piece.end])]
            at = piece.end
    return "".join([*parts, text[at:]])


def logical(text: str) -> str:
    """The code and its literals as a compiler sees them: each comment a space, joined lines in one."""
    parts, at = [], 0
    for piece in _pieces(text):
        if piece.is_comment:
            gap = re.sub(r"[^\n]", "", text[piece.begin : piece.end])  # lines keep their numbers
            parts += [_JOINED.sub("", text[at : piece.begin]), f" {gap}"]
            at = piece.end
        elif piece.is_raw:  # in which no lines are joined
            parts += [_JOINED.sub("", text[at : piece.begin]), text[piece.begin : piece.end]]
            at = piece.end
    return "".join([*parts, _JOINED.sub("", text[at:])])


def without_texts(text: str) -> str:
    """The code with blanks between the quotes of its literals; positions stay."""
    parts, at = [], 0
    for piece in _pieces(text):
        if not piece.is_comment and piece.end - piece.begin > 1:
            quote = text[piece.end - 1]
            hidden = re.sub(r"[^\n]", " ", text[piece.begin : piece.end])
            parts += [text[at : piece.begin], quote, hidden[1:-1], quote]
            at = piece.end
    return "".join([*parts, text[at:]])


def code_of(source: str) -> str:
    """A source without comments, contents of literals and code in `#if 0`, with lines joined, and with brackets in
    place of digraphs."""
    code = without_attempts(without_texts(logical(source)))  # a raw string may have `#if 0`
    return _DIGRAPH.sub(lambda found: f"{_DIGRAPHS[found.group()]} ", code)


def without_attempts(code: str) -> str:
    """A text of :func:`logical`, with empty lines in place of those in `#if 0`. In doubt a line stays."""
    lines, depth = [], 0  # of conditions, from the first `#if 0` on
    for line in code.split("\n"):
        found = _CONDITION.match(line)
        if depth and found:
            depth += found[1].startswith("if") - (found[1] == "endif" or (depth == 1 and found[1].startswith("el")))
        lines.append("" if depth else line)
        depth = depth or bool(_NEVER.match(line))
    return "\n".join(lines)


def first_branches(code: str, text: str) -> str:
    """``code``, which is ``text`` without the preprocessor's lines, with spaces for all but the first branch of each
    condition whose branches open brackets and leave them open."""
    lines, groups = code.split("\n"), list[list[int]]()
    for number, line in enumerate(text.split("\n")):
        found = _CONDITION.match(line)
        if found and found[1] == "if":
            groups.append([number])
        elif found and groups and found[1] == "el":
            groups[-1].append(number)
        elif found and groups:
            begins = [*groups.pop(), number]
            branches = ["\n".join(lines[a:b]) for a, b in itertools.pairwise(begins)]
            if any(branch.count(a) != branch.count(b) for branch in branches for a, b in ("{}", "()")):
                lines[begins[1] : number] = [" " * len(line) for line in lines[begins[1] : number]]
    return "\n".join(lines)


def _pieces(text: str) -> Iterator[Piece]:
    joined, begins, gone = _join(text)

    def place(position: int) -> int:
        """The position in ``text`` of a position in ``joined``."""
        return position + gone[bisect.bisect_right(begins, position)]

    at = 0
    while found := _TOKEN.search(joined, at):
        at = found.end()
        begin = place(found.start())
        if found["comment"] is not None:
            yield Piece(begin, place(at - 1) + 1, is_comment=True)
        elif found["raw"] is not None:
            # Lines are not joined inside of it: its end is searched in the original text.
            closing = f'){found["mark"]}"'
            end = text.find(closing, place(at - 1) + 1)
            end = len(text) if end < 0 else end + len(closing)
            joined, begins, gone = _join(text, end)
            at = _behind_suffix(joined, end)
            yield Piece(begin, end, is_comment=False, is_raw=True)
        elif found["literal"] is not None:
            end = place(at - 1) + 1
            at = _behind_suffix(joined, at)
            yield Piece(begin, end, is_comment=False)


def _behind_suffix(joined: str, at: int) -> int:
    """Where the suffix of a literal ends (``"x"_s``)."""
    found = _SUFFIX.match(joined, at)
    assert found is not None  # it may be empty
    return found.end()


def _join(text: str, start: int = 0) -> tuple[str, list[int], list[int]]:
    """The text from ``start`` on with lines joined at backslashes; the places where characters were removed; and the
    number of removed characters before the first place, behind it, behind the second, ..."""
    begins, gone = [], [0]
    for found in _JOINED.finditer(text, start):
        begins.append(found.start() - gone[-1])
        gone.append(gone[-1] + len(found.group()))
    return text[:start] + _JOINED.sub("", text[start:]) if begins else text, begins, gone

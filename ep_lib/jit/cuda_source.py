"""Parses just enough of CUDA C++ to find the order of a kernel's calls: no compiler, no types.

:func:`blank` replaces comments, strings and preprocessor lines by spaces, :func:`functions` finds the device functions,
:func:`bodies` all functions. Each has its body as a tree of :class:`Node`: calls in the order in which they run,
branches, loops and jumps. Macros are not expanded, templates are taken as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ep_lib.jit.lexer import without_comments

_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_DEVICE = re.compile(r"\b(?:__global__|__device__|EP_DEVICE|EP_HOST_DEVICE)\b")
_NAME_AND_PAREN = re.compile(r"([A-Za-z_]\w*)\s*\(")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^;{}()]*>)?\s*\(")
_LABEL = re.compile(r"(?:case\b(?:[^:;{}]|::)*|default\s*):(?!:)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_NOT_NAMES = {"__launch_bounds__", "__attribute__", "__cluster_dims__", "__align__", "alignas", "decltype", "noexcept"}


@dataclass(frozen=True)
class Call:
    """``name(arguments)``, at ``line`` (from 1)."""

    name: str
    arguments: tuple[str, ...]
    line: int


@dataclass
class Node:
    """A statement. "calls": the calls of one expression; "block": its parts in sequence; "branch": one of ``parts``
    runs (or none, if ``may_skip``); "loop": its parts run repeatedly; "jump": return, break, continue, goto."""

    kind: Literal["calls", "block", "branch", "loop", "jump"]
    calls: tuple[Call, ...] = ()  # for a branch or a loop: the calls in its condition
    parts: list[Node] = field(default_factory=list)
    may_skip: bool = False
    begin: int = field(default=0, compare=False)  # offsets in the text
    end: int = field(default=0, compare=False)
    condition: str = field(default="", compare=False)


@dataclass(frozen=True)
class Function:
    """A device function with a body."""

    name: str
    line: int
    is_kernel: bool
    body: Node


def blank(text: str) -> str:
    """``text`` with comments, literals and preprocessor lines as spaces; lines stay lines."""
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), without_comments(text))


def line_of(text: str, offset: int) -> int:
    """The line, from 1, that ``offset`` is in."""
    return text.count("\n", 0, offset) + 1


def calls_in(text: str, begin: int = 0, end: int | None = None) -> Iterator[Call]:
    """Every call in a blanked text, by its opening parenthesis."""
    for match in _CALL.finditer(text, begin, len(text) if end is None else end):
        yield Call(match.group(1), _arguments(text, match.end() - 1), line_of(text, match.start()))


def functions(text: str) -> list[Function]:
    """The device functions of a blanked text, in its order."""
    found = []
    end = 0
    for marker in _DEVICE.finditer(text):
        if marker.start() < end:  # inside a finished function, or a second marker on it
            continue
        at = marker.end()
        while (match := _NAME_AND_PAREN.search(text, at)) is not None:
            if re.search(r"[;{}]", text[at : match.start()]):
                break
            after = matching(text, match.end() - 1) + 1
            if match.group(1) in _NOT_NAMES:
                at = after
                continue
            opening = re.compile(r"[\s\w]*").match(text, after)
            body = opening.end() if opening else after
            if text[body : body + 1] == "{":
                node, end = _Parser(text).statement(body)
                line = line_of(text, match.start())
                found.append(Function(match.group(1), line, "__global__" in text[marker.start() : match.start()], node))
            break
    return found


def bodies(text: str) -> list[Node]:
    """The bodies of all functions of a blanked text, also of those that begin with a macro."""
    found = []
    at = 0
    while (opening := text.find("{", at)) >= 0:
        head = re.split(r"[;}]", text[at:opening])[-1]
        if re.search(r"\b(?:namespace|extern|struct|class|union)\b[^()]*$", head):
            at = opening + 1
        elif ")" in head or re.fullmatch(r"\s*\w+\s*", head):  # or a macro that is a head
            node, at = _Parser(text).statement(opening)
            found.append(node)
        else:
            at = matching(text, opening) + 1
    return found


def matching(text: str, opening: int) -> int:
    """Where the bracket at ``opening`` closes; the end of the text if it never does."""
    stack = []
    for i in range(opening, len(text)):
        if text[i] in _CLOSING:
            stack.append(_CLOSING[text[i]])
        elif stack and text[i] == stack[-1]:
            stack.pop()
            if not stack:
                return i
    return len(text) - 1


def _arguments(text: str, opening: int) -> tuple[str, ...]:
    inside = text[opening + 1 : matching(text, opening)]
    words, depth, begin = [], 0, 0
    for i, char in enumerate(inside):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            words.append(inside[begin:i].strip())
            begin = i + 1
    last = inside[begin:].strip()
    return (*words, last) if words or last else ()


def _cases(body: Node) -> list[Node]:
    """The alternatives of a switch: its statements up to each break or return."""
    cases = [Node("block")]
    for part in body.parts:
        cases[-1].parts.append(part)
        if _ends(part):
            cases.append(Node("block"))
    for case in cases:
        if case.parts:
            case.begin, case.end = case.parts[0].begin, case.parts[-1].end
    for case in cases:  # a break leaves the switch alone
        if case.parts and case.parts[-1].kind == "block" and case.parts[-1].parts[1:] == [Node("jump")]:
            case.parts[-1] = case.parts[-1].parts[0]
    return cases


def _ends(node: Node) -> bool:
    return node.kind == "jump" or (node.kind == "block" and bool(node.parts) and _ends(node.parts[-1]))


class _Parser:
    """Recursive descent over statements."""

    def __init__(self, text: str) -> None:
        self.text = text

    def statement(self, at: int) -> tuple[Node, int]:
        """The statement that begins at or after ``at``, and where it ends."""
        at = self._skip(at)
        node, end = self._statement(at)
        node.begin, node.end = at, end
        return node, end

    def _statement(self, at: int) -> tuple[Node, int]:
        while (label := _LABEL.match(self.text, at)) is not None:
            at = self._skip(label.end())
        if self.text[at : at + 1] == "{":
            return self._block(at)
        word = self._word(at)
        if word in ("if", "for", "while", "switch"):
            return self._with_condition(word, at + len(word))
        if word == "do":
            body, at = self.statement(at + len(word))
            begin = at
            condition, at = self._expression(at)
            return Node("loop", condition.calls, [body], condition=self.text[begin:at]), at
        calls, end = self._expression(at)
        if word in ("return", "break", "continue", "goto"):
            return Node("block", parts=[calls, Node("jump")]), end
        return calls, end

    def _block(self, at: int) -> tuple[Node, int]:
        close = matching(self.text, at)
        node = Node("block")
        at = self._skip(at + 1)
        while at < close:
            part, at = self.statement(at)
            node.parts.append(part)
            at = self._skip(at)
        return node, close + 1

    def _with_condition(self, word: str, at: int) -> tuple[Node, int]:
        opening = self.text.find("(", at)
        if opening < 0:
            return Node("calls"), len(self.text)
        close = matching(self.text, opening)
        calls = tuple(calls_in(self.text, opening + 1, close))
        condition = self.text[opening + 1 : close]
        body, at = self.statement(close + 1)
        if word in ("for", "while"):
            return Node("loop", calls, [body], condition=condition), at
        if word == "switch":
            return Node("branch", calls, _cases(body), may_skip=True, condition=condition), at
        node = Node("branch", calls, [body], may_skip=True, condition=condition)
        behind = self._skip(at)
        if word == "if" and self._word(behind) == "else":
            other, at = self.statement(behind + len("else"))
            node.parts.append(other)
            node.may_skip = False
        return node, at

    def _expression(self, at: int) -> tuple[Node, int]:
        end = at
        while end < len(self.text) and self.text[end] not in ";}":
            end = matching(self.text, end) + 1 if self.text[end] in _CLOSING else end + 1
        calls = tuple(calls_in(self.text, at, end))
        return Node("calls", calls), max(end + (self.text[end : end + 1] == ";"), at + 1)

    def _skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def _word(self, at: int) -> str:
        match = _WORD.match(self.text, at)
        return match.group() if match else ""

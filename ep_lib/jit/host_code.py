"""Sets the host's part of a source aside: functions, variables and types that nothing for GPUs names, and headers.

nvcc compiles a whole program, so files that people paste, and headers that these include, hold a `main`, allocations
and launches as well. Neither g++, which knows no `<<<`, nor NVRTC, which has no host, can compile these, and no kernel
needs them. With them go headers of Thrust and CUB that no kernel names anything of, libraries that are not here, and
those in CUDA's folders whose functions NVRTC refuses.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ep_lib.jit import digest, toolkit
from ep_lib.jit.cuda_source import blank, matching
from ep_lib.jit.lexer import first_branches, without_attempts, without_comments
from ep_lib.jit.source import BYTE_ORDER_MARK, KernelSource

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
_OF_OPERATOR = re.compile(r"(?:\b(\w+)\s*::\s*)?\boperator\b")
_USE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?P<header>(?:(?P<library>thrust|cub)/)?[^>\"\n]+)[>\"]"  # also a namespace
    r"|\busing\s+namespace\s+(?:::\s*)?(?P<space>\w+)[^;{}]*;",
    re.MULTILINE,
)
_OF_CPP = re.compile(r"[a-z_]+")
_OF_THE_HOST = re.compile(r"^([^\n(]+)\(\d+\): error: A function without execution space annotations", re.MULTILINE)


class _Declaration(NamedTuple):
    """``texts[text][begin:end]``, and what it declares; without names, it is none that may go."""

    text: int
    begin: int
    end: int
    names: set[str]
    words: set[str]


def set_aside(kernel: KernelSource, transport: Path, log: str = "") -> KernelSource | None:
    """The kernel with spaces in place of what only the host has, in its source and in headers of the learner's own;
    None if there is nothing of the host's. Byte order marks, which NVRTC takes in no header, go as well. ``log``: what
    the compiler says of it; CUDA's folders hold libraries of the host as well, and functions of theirs are named there.
    """
    system = [toolkit.EMULATOR_INCLUDE, *toolkit.cuda_include_dirs()]
    found = digest.scan(kernel.source, kernel.include_roots(transport), system)
    own = found.outside([*system, toolkit.PACKAGE, *kernel.pieces(transport)])  # the library calls the pieces
    files = {str(file): file.read_text(encoding="utf-8", errors="replace") for file in own}
    texts = [kernel.source, *(text.removeprefix(BYTE_ORDER_MARK) for text in files.values())]
    others = [Path(file) for file in found.outside(system) if file not in own]
    defines = [define for file in others for define in _DEFINE.findall(file.read_text("utf-8", "replace"))]
    included = {name[1:-1] for text in texts for name in digest.includes(text)}
    blamed = set(_OF_THE_HOST.findall(log))
    missing = {
        name for name in included & found.others if not (_OF_CPP.fullmatch(name) or toolkit.is_of_the_host(name))
    } | {
        name
        for name in included - found.others
        if blamed.intersection(digest.scan(f"#include <{name}>\n", system).files)
    }
    bare = without_host_code(texts, named=[kernel.name, *kernel.defines.values()], defines=defines, missing=missing)
    if bare == [kernel.source, *files.values()]:
        return None
    of_gpus = copy.copy(kernel)
    of_gpus.left_out = sorted(missing)
    of_gpus.texts = dict(zip([str(kernel.source_path), *files], bare, strict=True))
    return of_gpus


def without_host_code(
    texts: Sequence[str],
    *,
    named: Iterable[str] = (),
    defines: Iterable[tuple[str, str]] = (),
    missing: Iterable[str] = (),
) -> list[str]:
    """``texts``, of one translation unit, with spaces in place of what only the host has, as far as brackets tell;
    lines stay lines. ``named``: what is needed besides; ``defines``: macros of other files, and what each stands for;
    ``missing``: headers that are not here, or not for GPUs."""
    codes = [_without_attempts(text) for text in texts]
    defines = [*defines, *(define for text in texts for define in _DEFINE.findall(without_comments(text)))]
    macros = {name: set(_WORD.findall(body)) for name, body in defines}
    for_gpus = set(_FOR_GPUS)
    while more := {name for name, words in macros.items() if words & for_gpus} - for_gpus:
        for_gpus |= more
    found, reached = list[_Declaration](), {word for text in named for word in _WORD.findall(text)}
    for number, (text, code) in enumerate(zip(texts, codes, strict=True)):
        parsed = first_branches(code, without_comments(text))
        if any(parsed.count(opening) != parsed.count(closing) for opening, closing in ("{}", "()")):
            reached.update(_WORD.findall(code))  # it cannot be taken apart
            continue
        at = 0
        for begin, end in _declarations(parsed, 0, len(parsed)):
            found.append(_read(parsed, code, number, begin, end, macros))
            reached.update(_WORD.findall(code[at:begin]))
            at = end
        reached.update(_WORD.findall(code[at:]))
    declared = set[str]().union(*(each.names for each in found)) - {_OPERATOR}
    # An operator is not called by name: it belongs to the types that it takes.
    found = [each._replace(names=each.words & declared) if _OPERATOR in each.names else each for each in found]
    left = [each for each in found if each.names and not each.words & for_gpus]
    reached.update(*(each.words for each in found if each not in left))
    count = -1
    while count != len(reached):
        count = len(reached)
        reached.update(*(words for name, words in macros.items() if name in reached))
        reached.update(*(each.words for each in left if each.names & reached))
    gone = [each for each in left if not each.names & reached]
    bare = list(texts)
    for each in gone:
        text = bare[each.text]
        bare[each.text] = text[: each.begin] + _emptied(text[each.begin : each.end]) + text[each.end :]
    uses = [list(_USE.finditer(without_comments(text, keep_strings=True))) for text in texts]
    of_host = {use["library"] for several in uses for use in several} - reached - {None}
    of_host |= set(missing)
    for number, several in enumerate(uses):
        for use in several:
            if gone and {use["library"], use["space"], use["header"]} & of_host:
                text = bare[number]
                bare[number] = text[: use.start()] + re.sub(r"[^\n]", " ", use[0]) + text[use.end() :]
    return bare


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


def _read(parsed: str, code: str, number: int, begin: int, end: int, macros: Collection[str]) -> _Declaration:
    """What is declared between these places of ``parsed``, which is ``code``, or a part of it."""
    text = parsed[begin:end]
    words = set() if _USE.match(text) else set(_WORD.findall(code[begin:end]))
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
    is_typedef = functions and outside.startswith("typedef")
    called = _BEFORE_PARAMETERS.match(outside) if functions else None  # a macro, or an attribute
    if _NO_DECLARATION.search(outside) or is_typedef or text[-1] not in ";}":  # it is not finished
        names = set()
    elif called:  # what no macro here defines is of a header that is not here
        names = set() if called[1] in macros or called[1] in _TAKE_PARENTHESES else {called[1]}
    elif operator := _OF_OPERATOR.search(outside):
        names = {operator[1] or _OPERATOR}  # a member's is there for its class
    elif functions:
        names = functions
    elif _TYPE.match(outside):
        names = (words if "enum" in outside else set(_WORD.findall(outside))) - _IN_HEADS
    else:
        names = {match[1] for part in outside.split(",") if (match := _LAST_NAME.search(part))}
    return _Declaration(number, begin, end, names, words)

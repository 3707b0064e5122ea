"""Accesses of memory that g++'s ThreadSanitizer pass leaves out, found in the compiler's own dump behind that pass.

g++ tells the sanitizer of assignments, and not of what a call itself moves: a struct that a call passes on straight
from memory (``f(__builtin_bit_cast(S, *p))``), or whose result it stores there (``new (p) S(make())``; in ``make`` the
result is a variable of its own). Structs in variables of a function do no harm: no other thread has them.
Reads of constants are left out as well, and those can lie in shared memory; and whatever instructions of this machine's
own do, in assembly or by the compiler's functions for them, whichever header they came by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Of the pass, each statement as a list of its operands, variables with a number of their own.
DUMP = "-fdump-tree-tsan1-raw-uid"

# An operand that is no memory: a value with a number (_12, x_3(D)), a constant, an address. Calls of these alone, and
# what the sanitizers added, are most calls; the rest is looked at.
_PLAIN = r"(?:[\w.$#]*_\d+(?:\(D\))?|NULL|-?\d[^,\n]*|&[\w.$<>]+)"
_CALL = re.compile(
    r"gimple_call <(?!\.[A-Z]|__builtin___tsan_)"
    rf"(?![^,\n]*(?:, {_PLAIN})*>(?: \[[^\n]*)?\n)(?P<operands>[^\n]*)>(?: \[[^\n]*)?\n"
)
# Where a dump is with lines: g++ 13 and later number the calls of a line, "k.cu:3:5 discrim 1".
_LINE = r"(?P<file>[^\n]*):(?P<line>\d+):\d+(?: discrim \d+)?"
_BEFORE_CALL = re.compile(rf"  (?:\[{_LINE}\] )?")
_ASSIGNMENT = re.compile(rf"  (?:\[{_LINE}\] )?gimple_assign <(?!addr_expr)\w+, (?P<operands>[^\n]*)>\n")
# Instructions of this machine's own. Assembly of nothing, which only keeps the compiler from moving code, does nothing.
_MACHINES = re.compile(
    r"gimple_(?:call <(?P<called>__builtin_(?:ia32|aarch64|neon|sve|arm|altivec|vsx|riscv)_\w+?)(?:D\.\d+)?,"
    r"|asm <\s*STRING <(?!\s*>))"
)
_FUNCTION = re.compile(r"\n;; Function (?P<name>[^\n]*) \([^\n]*\n")
_CALLEE = re.compile(r"(?P<name>operator[^\n]*?|[^\s,(]*)D\.(?P<uid>\d+), ")
_REGISTERS = {"__cxa_atexit", "__cxa_thread_atexit"}  # a destructor, which such a dump writes as if it were a struct
_PLACE = re.compile(r"\[[^\n\]]*:\d+:\d+(?: discrim \d+)?\] ")  # before operands, where a dump is with lines
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"D\.(\d+)")
_CONVERSION = re.compile(r"VIEW_CONVERT_EXPR<[^\n]*?>\(")
_BASE = re.compile(r"<retval>|[^\s(\[]*?D\.(?P<uid>\d+)")
_SSA_NAME = re.compile(r"[\w.$<>#]*_\d+(?:\((?:D|ab)\))*")
_BY_REFERENCE = re.compile(r"^  [^\n]* & _\d+\(D\);$", re.MULTILINE)


class Unseen(NamedTuple):
    """An access that the sanitizer is not told of. ``file`` and ``line`` are there in a dump with lines."""

    file: str | None
    line: int | None
    called: str  # the function that the call is of; "" if a pointer says which
    is_write: bool
    function: str  # that makes the call
    is_constant: bool = False  # a read of a constant in shared memory, by the name of `called`
    is_machines: bool = False  # an instruction of this machine's own: `called`, or assembly


def accesses(dump: str) -> Iterator[Unseen]:
    """What g++ did not tell the sanitizer of, in a dump that it has made with :data:`DUMP`."""
    for call in _CALL.finditer(dump):
        place = _BEFORE_CALL.fullmatch(dump, dump.rfind("\n", 0, call.start()) + 1, call.start())
        if place is None:  # in a text
            continue
        operands = _TEXT.sub('""', _PLACE.sub("", call["operands"]))
        callee = _CALLEE.match(operands)
        if callee and callee["name"] in _REGISTERS:
            continue
        result, *arguments = _split(operands[callee.end() :] if callee else operands.partition(", ")[2])
        begin = dump.rfind("\n;; Function ", 0, call.start())
        own = _of_function(_head(dump, begin))
        writes = _is_memory(result, own) and not (callee and _returns_by_address(dump, callee["uid"]))
        if writes or any(_is_memory(each, own) and not _is_function(dump, each) for each in arguments):
            yield _unseen(dump, place, begin, callee["name"] if callee else "", is_write=writes)


def instructions(dump: str) -> Iterator[Unseen]:
    """Instructions of this machine's own, of which the sanitizer is told nothing."""
    for found in _MACHINES.finditer(dump):
        place = _BEFORE_CALL.fullmatch(dump, dump.rfind("\n", 0, found.start()) + 1, found.start())
        if place is None:  # in a text
            continue
        begin = dump.rfind("\n;; Function ", 0, found.start())
        yield _unseen(dump, place, begin, found["called"] or "asm", is_write=True)._replace(is_machines=True)


def constants(dump: str, symbols: Iterable[str]) -> Iterator[Unseen]:
    """Reads that g++ did not tell the sanitizer of since what is read is constant, of variables with these symbols:
    those in shared memory, which a kernel can write all the same."""
    for name in sorted({name for symbol in symbols for name in names_in(symbol)}):
        variable = re.compile(rf"{re.escape(name)}D\.(?<![\w.$]{re.escape(name)}D\.)\d+")
        lines = {dump.rfind("\n", 0, found.start()) + 1 for found in variable.finditer(dump)}
        for begin in sorted(lines):
            if (read := _ASSIGNMENT.match(dump, begin)) is None:
                continue
            operands = _split(_TEXT.sub('""', _PLACE.sub("", read["operands"])))[1:]
            from_it = [each for each in operands if variable.search(each) and _is_memory(each, set())]
            if not from_it or "_read" in _told_before(dump, begin):
                continue
            start = dump.rfind("\n;; Function ", 0, begin)
            own = _of_function(_head(dump, start))
            if any(_is_memory(each, own) for each in from_it):
                yield _unseen(dump, read, start, name, is_write=False)._replace(is_constant=True)


def _unseen(dump: str, place: re.Match[str], begin: int, called: str, *, is_write: bool) -> Unseen:
    """Of a statement in the function whose head begins there."""
    function = _FUNCTION.match(dump, begin)
    line = int(place["line"]) if place["line"] else None
    return Unseen(place["file"], line, called, is_write, function["name"] if function else "")


def _told_before(dump: str, begin: int) -> str:
    """What the sanitizer is told right before the statement that begins there."""
    told = ""
    while begin > 0:
        line = dump[dump.rfind("\n", 0, begin - 1) + 1 : begin]
        if "gimple_call <__builtin___tsan_" not in line and "gimple_assign <addr_expr, " not in line:
            break
        told += line if "gimple_call" in line else ""
        begin -= len(line)
    return told


def names_in(symbol: str) -> Iterator[str]:
    """The names that a symbol is made of: ``_ZZ1hiE4tile`` of h and tile."""
    if not symbol.startswith("_Z"):
        yield symbol
    for number in re.finditer(r"\d+", symbol):
        name = symbol[number.end() : number.end() + int(number[0])]
        if name.isidentifier():
            yield name


def _head(dump: str, begin: int) -> str:
    """A function's variables and parameters, as declared before its first statement."""
    return dump[begin : dump.find("<bb ", begin)]


def _returns_by_address(dump: str, uid: str) -> bool:
    """Whether a function writes its result to where a pointer says, in accesses of its own: so it is with types that
    have a copy constructor of their own."""
    begin = dump.find(f"decl_uid={uid},")
    return begin >= 0 and _BY_REFERENCE.search(_head(dump, begin)) is not None


def _is_function(dump: str, operand: str) -> bool:
    """Whether an operand is a function of this dump: as an argument that is an address, which is written like a
    variable."""
    base = _BASE.fullmatch(operand)
    return base is not None and base["uid"] is not None and f"decl_uid={base['uid']}," in dump


def _split(operands: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(operands):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(operands[begin:at].strip())
            begin = at + 1
    return [*parts, operands[begin:].strip()]


def _of_function(head: str) -> set[str]:
    """The numbers of a function's own variables and parameters."""
    lines = (line for line in head.splitlines() if not line.startswith(("  static ", "  extern ")))
    return {number for line in lines for number in _NUMBER.findall(line)}


def _is_memory(operand: str, own: set[str]) -> bool:
    """Whether an operand lies in memory that other threads may have: not a value, and no variable of the function."""
    if operand in ("", "NULL", "Inf", "Nan") or operand[0] in '&{"-+0123456789' or _SSA_NAME.fullmatch(operand):
        return False
    if "MEM" in operand:  # MEM[(struct S *)&x + 8B]
        address = re.search(r"&[^\s\])]*?D\.(\d+)", operand)
        return address is None or address[1] not in own
    if "*" in operand or "->" in operand:
        return True
    if operand.startswith("C."):  # a constant of the compiler's own
        return False
    base = _BASE.match(_CONVERSION.sub("", operand))
    return base is None or (base["uid"] is not None and base["uid"] not in own)

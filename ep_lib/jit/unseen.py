"""Memory accesses that g++'s ThreadSanitizer pass leaves out, found in the compiler's own dump after that pass.

A load or store of a statement is unseen unless one of these holds:

* the sanitizer is called for it right before the statement;
* it is in a variable of the function itself, or in a constant, where no other thread writes. Its offset is a small
  constant, or an index that ``-fsanitize=bounds-strict`` checks, or one that cannot be large (``i & 7``).

g++ instruments assignments, but not memory that a call itself moves: a struct that a call passes on straight from
memory (``f(__builtin_bit_cast(S, *p))``), or a result that it stores there (``new (p) S(make())``; in ``make`` the
result is a variable of its own). It leaves out any index into a variable whose address stays in the function, and into
a constant (``table[p - table]``). It also leaves out reads of constants in shared memory, although a kernel can write
there; and accesses of machine instructions, in assembly or through the compiler's functions for them, from any header.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# The dump of the pass (each statement as a list of operands, each variable with a number), and of each class's size.
DUMP, CLASSES = "-fdump-tree-tsan1-raw-uid", "-fdump-lang-class"

# Kinds of accesses
CALL, INDEX, CONSTANT, MACHINE = "call", "index", "constant", "machine"

# Bytes or elements: accesses within this distance stay in the variable, or in the frame around it. Fibers' stacks are
# adjacent and larger.
_NEAR = 4096
_HUGE_CLASS = 1 << 16  # bytes; a member of such a class may be far away without any index

_VALUE = r"[\w.$<>#]*_\d+(?:\((?:D|ab)\))*"  # with a number of its own: _12, x_3(D)
# An operand that is no memory: a value, a constant, an address. Most statements have only these, as do those of the
# sanitizers; the others are examined.
_PLAIN = rf"(?:{_VALUE}|NULL|-?\d[^,\n]*|&[\w.$<>]+)"
# A statement with its line, in a dump with lines: g++ 13 and later number the calls of a line, "k.cu:3:5 discrim 1".
_PLACED = r"\n  (?:\[(?P<file>[^\n]*):(?P<line>\d+):\d+(?: discrim \d+)?\] )?"
_ASSIGNMENT = re.compile(
    rf"{_PLACED}gimple_assign <(?!addr_expr, {_VALUE},|\w*cond_expr)(?P<code>\w+)"
    rf"(?!(?:, {_PLAIN})*>\n|[^\n]*\{{CLOBBER), (?P<operands>[^\n]*)>(?=\n)"
)
_CALL = re.compile(
    rf"{_PLACED}gimple_call <(?!\.UBSAN_|__builtin___tsan_)(?![^,\n]*(?:, {_PLAIN})*>(?: \[[^\n]*)?\n)"
    r"(?P<operands>[^\n]*)>(?: \[[^\n]*)?(?=\n)"
)
# Machine instructions; atomic functions with an invalid order, which the sanitizer leaves unchanged. Empty assembly,
# which only keeps the compiler from moving code, is harmless.
_MACHINES = re.compile(
    rf"{_PLACED}gimple_(?:call <(?P<called>__builtin_(?:ia32|aarch64|neon|sve|arm|altivec|vsx|riscv)_\w+?"
    r"|__(?:atomic|sync)_\w+?_(?:1|2|4|8|16))(?:D\.\d+)?,"
    r"|asm <\s*STRING <(?!\s*>))"
)
_FUNCTION = re.compile(r"\n;; Function (?P<name>[^\n]*) \([^\n]*\n")
_CALLEE = re.compile(r"(?P<name>operator[^\n]*?|[^\s,(]*)D\.(?P<uid>\d+), ")
_REGISTERS = {"__cxa_atexit", "__cxa_thread_atexit"}  # a destructor, which such a dump writes as if it were a struct
_PLACE = re.compile(r"(?<!\n  )\[[^\n\[\]]*:\d+:\d+(?: discrim \d+)?\] ")  # before operands, in a dump with lines
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETED_COMMA = re.compile(r"[(\[{<][^)\]}>]*,")
_NUMBER = re.compile(r"D\.(\d+)")
_BY_REFERENCE = re.compile(r"^  [^\n]* & _\d+\(D\);$", re.MULTILINE)
_TOLD = re.compile(r"gimple_call <__builtin___tsan_(?P<how>\w+?)D\.\d+, NULL, (?P<at>[^\n]*)>$")
_ADDRESS = re.compile(rf"gimple_assign <(?:addr_expr|pointer_plus_expr), (?P<name>{_VALUE}), (?P<of>[^\n]*)>$")

# Operands that are memory: `xD.5.aD.6[_7]`, `_1->aD.2`, `*_1`, `MEM <char[8]> [(struct S *)&xD.5 + 8B].aD.6[_7]`
_AROUND = re.compile(r"(?:VIEW_CONVERT_EXPR<(?P<cast>[^\n]*?)>\(|(?:BIT_FIELD_REF|REALPART_EXPR|IMAGPART_EXPR) <)")
_POINTED = re.compile(
    rf"(?:\(.*\))?(?P<to>&[^\s()]+|{_VALUE}|\"\"|-?\d+B?|[^\s()&]+D\.\d+)(?: \+ (?P<offset>-?\d+)B?)?(?P<more>.*)$"
)
_POINTER = re.compile(rf"(?:\*(?P<a>{_VALUE}|-?\d+B?)|(?P<b>{_VALUE})->[^\s.\[\]]*)")
_VARIABLE = re.compile(r"(?P<own><retval>)|(?P<constant>\"\"|\*?\.LC\d+|C\.\d+)|(?P<name>[^\s(\[]*?)D\.(?P<uid>\d+)")
_STEP = re.compile(r"\.(?P<member>[^\s.\[\]]*(?:\.\d+)?)|\[(?P<index>[^\]]*)\]")
_SIZE = re.compile(r"\[(\d+)\]")

_CLASS_SIZE = re.compile(r"^Class [^\n]*\n   size=(\d+) ", re.MULTILINE)
_BLOCK = re.compile(r"\n  <bb (\d+)>")
_LABEL = re.compile(r"\ngimple_label <([^\n]*)>\n")
_DEFINITION = re.compile(
    rf"\n  (?:\[[^\n]*\] )?gimple_assign <(?P<code>\w+), (?P<name>{_VALUE}), (?P<operands>[^\n]*)>"
)
_BOUND = re.compile(rf"gimple_call <\.UBSAN_BOUNDS, NULL, 0B, (?P<index>{_VALUE}), (?P<most>\d+)>")
_SIGNED = {"char": 0x7F, "signed char": 0x7F, "short int": 0x7FFF}  # a larger value becomes negative in them
_NARROW = {"bool": 1, "_Bool": 1, "unsigned char": 0xFF, "uint8_t": 0xFF, "short unsigned int": 0xFFFF}
_DEEPEST = 8  # steps back through an index's definitions


class Unseen(NamedTuple):
    """An access that the sanitizer does not see. ``file`` and ``line`` are set from a dump with lines."""

    file: str | None
    line: int | None
    kind: str
    name: str  # of the called function or accessed variable; "" for a pointer or if unnamed
    is_write: bool
    function: str  # that has the statement


class Symbols(NamedTuple):
    """Facts about variables from an object file's symbols."""

    shared: Sequence[str]  # those in shared memory
    sizes: Mapping[str, int]  # of the others, in bytes


def accesses(dump: str, classes: str, symbols: Symbols) -> Iterator[Unseen]:
    """Accesses that g++ did not instrument, from dumps made with :data:`DUMP` and :data:`CLASSES`."""
    has_huge = any(int(size) > _HUGE_CLASS for size in _CLASS_SIZE.findall(classes))
    rules = _Rules(_PLACE.sub("", dump), symbols, has_huge_classes=has_huge)
    yield from rules.in_calls()
    yield from rules.in_assignments()


def instructions(dump: str) -> Iterator[Unseen]:
    """Machine instructions, which the sanitizer does not see."""
    for found in _MACHINES.finditer(dump):
        yield _unseen(dump, found, MACHINE, found["called"] or "asm", is_write=True)


class _Place(NamedTuple):
    """Memory that a statement accesses."""

    base: str  # a variable's number, or a star and the pointer value's number
    name: str  # the variable's
    offset: int  # bytes from there
    cast: str | None  # the type that is accessed there, if it is not the variable's own
    steps: tuple[str | None, ...]  # from there: an array's index, or None for a member
    is_constant: bool = False  # one of the compiler's own


class _Rules:
    """Rules for the dump of a translation unit."""

    def __init__(self, dump: str, symbols: Symbols, *, has_huge_classes: bool) -> None:
        self._dump, self._has_huge_classes = dump, has_huge_classes
        self._shared = {name for symbol in symbols.shared for name in names_in(symbol)}
        self._sizes: dict[str, int] = {}
        for symbol, size in symbols.sizes.items():
            for name in names_in(symbol):
                self._sizes[name] = max(size, self._sizes.get(name, 0))
        self._last = _Function(dump, 0)

    def in_assignments(self) -> Iterator[Unseen]:
        for found in _ASSIGNMENT.finditer(self._dump):
            target, *sources = _split(_TEXT.sub('""', found["operands"]))
            if found["code"].endswith("_cst"):
                sources = []
            places = [(_place(target), True), *((_place(source), False) for source in sources)]
            told = _told_before(self._dump, found.start() + 1)
            for place, is_write in places:
                if place and (place.base, is_write) not in told and not self._is_harmless(place, found.start()):
                    is_shared = place.name in self._shared and place.base not in self._last.own
                    kind = CONSTANT if is_shared else INDEX
                    yield _unseen(self._dump, found, kind, place.name, is_write=is_write)

    def in_calls(self) -> Iterator[Unseen]:
        for found in _CALL.finditer(self._dump):
            operands = _TEXT.sub('""', found["operands"])
            callee = _CALLEE.match(operands)
            if callee and callee["name"] in _REGISTERS:
                continue
            result, *arguments = _split(operands[callee.end() :] if callee else operands.partition(", ")[2])
            at, name = found.start(), callee["name"] if callee else ""
            target = None if callee and _returns_by_address(self._dump, callee["uid"]) else _place(result)
            sources = [_place(each) for each in arguments if not _is_function(self._dump, each)]
            if target and not self._is_harmless(target, at, is_of_call=True):
                yield _unseen(self._dump, found, CALL, name, is_write=True)
            elif not all(place is None or self._is_harmless(place, at, is_of_call=True) for place in sources):
                yield _unseen(self._dump, found, CALL, name, is_write=False)

    def _is_harmless(self, place: _Place, at: int, *, is_of_call: bool = False) -> bool:
        """Whether it is in a variable of the function itself, or in a constant outside of shared memory."""
        if place.base.startswith("*"):
            return False
        begin = self._dump.rfind("\n;; Function ", 0, at)
        if begin != self._last.begin:
            self._last = _Function(self._dump, begin)
        function = self._last
        is_own = place.base in function.own
        if not is_own and (place.name in self._shared or (is_of_call and not place.is_constant)):
            return False
        near = _NEAR if is_own else self._sizes.get(place.name, _NEAR)
        has_far_members = self._has_huge_classes and place.cast is not None
        if 0 <= place.offset <= near and not has_far_members and not any(place.steps):
            return True
        declared = function.declared(place.base) if is_own else ""
        sizes = [int(size) for size in _SIZE.findall(declared)]
        near = max(near, math.prod(sizes))
        if not 0 <= place.offset <= near:
            return False
        if place.cast is not None:
            sizes = [int(size) for size in _SIZE.findall(place.cast)]
            # Far members of such a class, or of an array of them, appear without an offset.
            if has_far_members and place.steps and not _same_class(place.cast, declared):
                return False
            if place.steps and place.steps[0] not in (None, "0") and not sizes:
                return False
        reach, is_member = 0, False
        for number, step in enumerate(place.steps):
            if step is None:
                is_member, sizes = True, []
                continue
            most = function.at_most(step, at)
            if most is None:
                return False
            size = sizes[number] if number < len(sizes) else None
            if size is not None and most > size:
                return False
            if size is None or place.cast is not None:
                reach += most * math.prod(sizes[number + 1 :])
            if is_member and self._has_huge_classes and number + 1 < len(place.steps):
                return False
            # `char a[][8][8]` in a struct by value: the dump does not give the stride of the first index.
            is_outer = is_member and number + 1 < len(place.steps) and place.steps[number + 1] is not None
            if is_outer and step != "0" and not function.is_checked(step):
                return False
        return reach <= near


class _Function:
    """A function of a dump that begins at this position."""

    def __init__(self, dump: str, begin: int) -> None:
        end = dump.find("\n;; Function ", begin + 1)
        self.begin, self._text = begin, dump[begin : end if end >= 0 else len(dump)]
        self._head = self._text[: self._text.find("<bb ")]
        self.own = {"<retval>", *_of_function(self._head)}

    def declared(self, uid: str) -> str:
        """A variable's declared type: ``char[8]``."""
        line = next((each for each in self._head.splitlines() if f"D.{uid}" in each), "")
        found = re.search(rf"(?P<type>[^(,]*?)[\w.$]*D\.{uid}(?P<sizes>(?:\[\d+\])*)(?:[;,) ]|$)", line)
        return found["type"].strip() + found["sizes"] if found else ""

    def is_checked(self, index: str) -> bool:
        """Whether g++ checks an index against a bound, which every array with a declared size has."""
        return any(m["index"] == index for m in _BOUND.finditer(self._text))

    def at_most(self, index: str, at: int, deep: int = 0) -> int | None:
        """The largest possible value of an index in a statement; None if unknown, or if it can be negative."""
        if index.isdigit():
            return int(index)
        if deep > _DEEPEST or not re.fullmatch(_VALUE, index):
            return None
        seen = (m for m in _BOUND.finditer(self._text) if m["index"] == index)
        bounds = [int(m["most"]) for m in seen if self._always_with(m.start(), at - self.begin)]
        if (last := self._last_of_loop(index)) is not None:
            bounds.append(last)
        definition = self._definitions.get(index)
        made_of = self._made_of(*definition, at, deep + 1) if definition else None
        if made_of is not None and made_of > _SIGNED.get(self._type_of(index), made_of):
            made_of = None
        return min([*bounds, *([] if made_of is None else [made_of])], default=None)

    def _made_of(self, code: str, operands: list[str], at: int, deep: int) -> int | None:
        first = self.at_most(operands[0], at, deep)
        second = self.at_most(operands[1], at, deep) if len(operands) > 1 else None
        if code in ("nop_expr", "ssa_name"):
            return _NARROW.get(self._type_of(operands[0])) if first is None else first
        if code == "bit_and_expr":
            return min((each for each in (first, second) if each is not None), default=None)
        if first is None or second is None:
            return None
        if code == "rshift_expr":
            return first >> second if operands[1].isdigit() else first
        return {"plus_expr": first + second, "mult_expr": first * second}.get(code)

    def _last_of_loop(self, index: str) -> int | None:
        """The last value of an index in g++'s own loops, such as those that clear an array of a struct."""
        phi = index
        if (made := self._definitions.get(index)) and made[0] == "plus_expr" and made[1][1] == "1":
            phi = made[1][0]
        begin = re.search(
            rf"# gimple_phi <{re.escape(phi)}, (?P<next>{_VALUE})\((?P<back>\d+)\), (?P<first>\d+)\(\d+\)>", self._text
        )
        if begin is None:
            return None
        ahead = begin["next"]
        counts = self._definitions.get(ahead, ("", []))
        ends = re.search(
            rf"gimple_cond <eq_expr, (?:{re.escape(phi)}|{re.escape(ahead)}), (\d+), [^\n]*\n"
            r"    goto <bb (\d+)>",
            self._text,
        )
        if counts[0] != "plus_expr" or counts[1][:2] != [phi, "1"] or ends is None:
            return None
        loop, back, out, end = (
            max(block for block in self._blocks if block < place)
            for place in (
                begin.start(),
                self._text.index(f"\n  <bb {begin['back']}>") + 1,
                self._text.index(f"\n  <bb {ends[2]}>") + 1,
                ends.start(),
            )
        )
        if self._come_to(out, {back}, past=loop) or (end != loop and self._come_to(loop, {back}, past=end)):
            return None
        return max(int(ends[1]), int(begin["first"]))

    def _type_of(self, value: str) -> str:
        variable = re.escape(value.rpartition("_")[0])
        names = rf"{re.escape(value)}" + (rf"|{variable}(?:D\.\d+)?" if variable else "")
        found = re.search(rf"[\n(,] *(?:const )?([\w ]*?)(?:D\.\d+)? (?:{names})[;,)]", self._head)
        return found[1] if found else ""

    @functools.cached_property
    def _definitions(self) -> dict[str, tuple[str, list[str]]]:
        return {m["name"]: (m["code"], m["operands"].split(", ")) for m in _DEFINITION.finditer(self._text)}

    def _always_with(self, check: int, at: int) -> bool:
        """Whether every path through the statement at ``at`` also passes ``check``, before or after it: g++ reads the
        old value of ``x[i] += y`` before it checks i."""
        first, last = (max(begin for begin in self._blocks if begin < place) for place in (check, at))
        if first == last or not self._come_to(min(self._blocks), {last}, past=first):
            return True
        ends = {begin for begin, follow in self._blocks.items() if not follow}
        return not self._come_to(last, ends, past=first)

    def _come_to(self, start: int, goals: set[int], *, past: int) -> bool:
        """Whether a path leads from a block to one of the others without passing ``past``."""
        seen, ahead = {past}, [start]
        while ahead:
            block = ahead.pop()
            if block not in seen:
                if block in goals:
                    return True
                seen.add(block)
                ahead += self._blocks[block]
        return False

    @functools.cached_property
    def _blocks(self) -> dict[int, list[int]]:
        """The beginning of each basic block, and the beginnings of its successors."""
        found = [*_BLOCK.finditer(self._text)]
        begins = {block[1]: block.start() for block in found}
        ends = [*(block.start() for block in found[1:]), len(self._text)]
        texts = {block.start(): self._text[block.start() : end] for block, end in zip(found, ends, strict=True)}
        labels = {label: begin for begin, text in texts.items() for label in _LABEL.findall(text)}
        follow: dict[int, list[int]] = {}
        for (begin, text), end in zip(texts.items(), ends, strict=True):
            follow[begin] = [begins[number] for number in re.findall(r"goto <bb (\d+)>", text) if number in begins]
            if "  gimple_switch <" in text or "  gimple_goto <" in text:
                follow[begin] += labels.values()
            elif "goto <bb" not in text.rstrip().rpartition("\n")[2] and end in texts:
                follow[begin].append(end)
        return follow


def _place(operand: str) -> _Place | None:
    """The memory of an operand; None if it is a value, a constant or an address."""
    if operand in ("", "NULL", '""', "Inf", "Nan") or operand[0] in "&{-+0123456789":
        return None
    if re.fullmatch(_VALUE, operand):
        return None
    cast = None
    while around := _AROUND.match(operand):
        inner, rest = _inside(operand, around.end() - 1)
        if around["cast"] is not None:
            cast = around["cast"]
        else:
            inner = _split(inner)[0]
        if re.fullmatch(_VALUE, inner):
            return None
        operand = inner + rest
    if operand.startswith("MEM"):
        begin = operand.find("[(") if "[(" in operand else operand.find("[")
        if begin < 0:
            return _Place("*?", "", 0, None, ())
        kind = re.match(r"MEM <(.*)> $", operand[:begin])
        inner, rest = _inside(operand, begin)
        pointed = _POINTED.match(inner)
        if pointed is None or pointed["more"] or not pointed["to"].startswith("&"):
            return _Place("*" + (pointed["to"] if pointed and not pointed["more"] else "?"), "", 0, None, ())
        variable = _VARIABLE.match(pointed["to"], 1)
        cast = cast or (kind[1] if kind else inner[1 : inner.find(")")])
        offset, steps = int(pointed["offset"] or 0), pointed["to"][variable.end() :] + rest if variable else ""
    elif pointer := _POINTER.match(operand):
        return _Place("*" + (pointer["a"] or pointer["b"]), "", 0, None, ())
    else:
        variable = _VARIABLE.match(operand)
        offset, steps = 0, operand[variable.end() :] if variable else ""
    if variable is None:
        return _Place("*?", "", 0, None, ())
    base = variable["own"] or variable["constant"] or variable["uid"]
    return _Place(
        base,
        variable["name"] or "",
        offset,
        cast,
        tuple(m["index"] for m in _STEP.finditer(steps)),
        bool(variable["constant"]),
    )


def _inside(operand: str, at: int) -> tuple[str, str]:
    """The content of the bracket that opens there, and the rest behind it."""
    close = {"(": ")", "[": "]", "<": ">"}[operand[at]]
    depth = 0
    for end in range(at, len(operand)):
        if operand[end] == operand[at]:
            depth += 1
        elif operand[end] == close and operand[end - 1] != "-":  # `->`
            depth -= 1
            if depth == 0:
                return operand[at + 1 : end], operand[end + 1 :]
    return operand[at + 1 :], ""


def _same_class(one: str, other: str) -> bool:
    first, second = _NUMBER.search(one), _NUMBER.search(other)
    return first is not None and second is not None and first[1] == second[1]


def _unseen(dump: str, found: re.Match[str], kind: str, name: str, *, is_write: bool) -> Unseen:
    begin = dump.rfind("\n;; Function ", 0, found.start())
    function = _FUNCTION.match(dump, begin)
    line = int(found["line"]) if found["line"] else None
    return Unseen(found["file"], line, kind, name, is_write, function["name"] if function else "")


def _told_before(dump: str, begin: int) -> set[tuple[str, bool]]:
    """The sanitizer's calls right before the statement that begins there: bases of places, and whether written."""
    told: set[tuple[str, bool]] = set()
    while begin > 0:
        line = dump[dump.rfind("\n", 0, begin - 1) + 1 : begin - 1]
        if call := _TOLD.search(line):
            at = call["at"].partition(", ")[0] if not call["at"].startswith("&") else _split(call["at"])[0]
            place = _place(at[1:]) if at.startswith("&") else None
            told.add((place.base if place else f"*{at}", "read" not in call["how"]))
        elif address := _ADDRESS.search(line):
            of = _split(address["of"])[0]
            place = _place(of[1:]) if of.startswith("&") else None
            base = place.base if place else f"*{of}"
            told |= {(base, is_write) for at, is_write in told if at == f"*{address['name']}"}
        else:
            break
        begin -= len(line) + 1
    return told


def names_in(symbol: str) -> Iterator[str]:
    """The names in a symbol: h and tile in ``_ZZ1hiE4tile``."""
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
    """Whether a function writes its result through a pointer, in accesses of its own, as for types with a copy
    constructor."""
    begin = dump.find(f"decl_uid={uid},")
    return begin >= 0 and _BY_REFERENCE.search(_head(dump, begin)) is not None


def _is_function(dump: str, operand: str) -> bool:
    """Whether an operand is a function of this dump: as an argument it is an address, written like a variable."""
    base = _VARIABLE.fullmatch(operand)
    return base is not None and base["uid"] is not None and f"decl_uid={base['uid']}," in dump


def _split(operands: str) -> list[str]:
    """At commas outside of brackets."""
    if not _BRACKETED_COMMA.search(operands):
        return [each.strip() for each in operands.split(", ")]  # g++ writes "  Inf"
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

"""Structs and constants that kernels and host share, read from the header that declares them.

A device header is the only owner of a struct's layout: the host asks :func:`header_struct` for it and packs bytes that
a kernel takes by value, so there is no mirror in Python to keep in step. The parser knows the plain C++ that such
headers are written in: integers, floats, pointers, enums, arrays and structs by value; any other declaration is an
error that names it. ``tests/jit/test_jit_structs.py`` compares sizes and offsets with the compiler's, for every struct
in use.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import numpy as np

from ep_lib.jit.lexer import without_comments
from ep_lib.require import show

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOTS = (_PACKAGE / "device", _PACKAGE)  # of <ep/...> and <moe/...>

_SCALARS = {
    "bool": "?",
    "char": "i1",
    "int8_t": "i1",
    "uint8_t": "u1",
    "int16_t": "i2",
    "uint16_t": "u2",
    "int": "i4",
    "int32_t": "i4",
    "unsigned": "u4",
    "unsigned int": "u4",
    "uint32_t": "u4",
    "int64_t": "i8",
    "long long": "i8",
    "uint64_t": "u8",
    "unsigned long long": "u8",
    "size_t": "u8",
    "float": "f4",
    "double": "f8",
}
_CODES = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_CODES |= {"f4": "f", "f8": "d"}

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(?:<((?:ep|moe)/[^>]+)>|\"([^\"]+)\")", re.MULTILINE)
_STRUCT = re.compile(r"\bstruct\s+(?:alignas\((\w+)\)\s*)?(\w+)\s*(?:final\s*)?\{")
_ENUM = re.compile(r"\benum(?:\s+(?:class|struct))?(?:\s+(\w+))?(?:\s*:\s*([\w ]+?))?\s*\{([^}]*)\}")
_CONSTANT = re.compile(r"\bconstexpr\s+(?:static\s+)?(?:inline\s+)?[\w: ]+?\s(\w+)\s*=\s*([^;{]+);")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_TOKEN = re.compile(r"[\w:]+|\*|\[[^\]]+\]")

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of positive numbers, as C++ does it
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}


class Field(NamedTuple):
    """A member: ``dtype`` as NumPy has it (an address for a pointer), and its offset in bytes."""

    name: str
    dtype: np.dtype[Any]
    offset: int


class HeaderStruct:
    """A struct as its header declares it. ``qualified`` is its C++ name, sizes and offsets are in bytes.

    ``pointers``: offset, and bytes of an element (0: unknown), by the member's name.
    """

    def __init__(
        self,
        qualified: str,
        fields: tuple[Field, ...],
        size: int,
        align: int,
        pointers: dict[str, tuple[int, int]],
    ) -> None:
        self.qualified, self.fields, self.size, self.align = qualified, fields, size, align
        self.pointers = pointers
        self.names = tuple(field.name for field in fields)
        self.offsets = {field.name: field.offset for field in fields}
        code, end = "<", 0
        for field in fields:
            kind = field.dtype
            code += f"{field.offset - end}x" + (_CODES.get(kind.str.lstrip("<|")) or f"{kind.itemsize}s")
            end = field.offset + kind.itemsize
        self._layout = Struct(f"{code}{size - end}x")

    def pack(self, **values: Any) -> bytes:
        """The struct's bytes. Every member must be named; structs and arrays inside it are given as bytes, and a
        pointer is an address: ``ep_lib.memory.arrays.describe(array).address``. Name such arrays in ``uses=`` of the
        launch, which keeps them alive. Raises TypeError."""
        if len(values) == len(self.names):
            try:
                return self._layout.pack(*[values[name] for name in self.names])
            except KeyError:
                pass
            except (StructError, TypeError, OverflowError):
                raise TypeError(self._what_does_not_fit(values)) from None
        raise TypeError(f"{self.qualified} has exactly the members {self.names}, got {tuple(values)}")

    def _what_does_not_fit(self, values: dict[str, Any]) -> str:
        for name, kind, _ in self.fields:
            code, value = _CODES.get(kind.str.lstrip("<|")), values[name]
            try:
                Struct(f"<{code or 's'}").pack(value)
            except (StructError, TypeError, OverflowError):
                is_address = hasattr(value, "shape") and kind == np.dtype("u8")
                how = ": pass describe(array).address, of ep_lib.memory.arrays" if is_address else ""
                return f"{self.qualified}.{name} is {kind if code else 'packed bytes'}; got {show(value)}{how}"
        raise AssertionError("each member fits alone")

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, for reading such structs from memory."""
        return np.dtype(
            {
                "names": list(self.names),
                "formats": [field.dtype for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.size,
            }
        )

    def __repr__(self) -> str:
        return f"<{self.qualified}, {self.size} bytes>"


@functools.cache
def header_struct(header: str | Path, name: str) -> HeaderStruct:
    """The struct ``name`` of ``header`` or of a header that it includes. ``header`` is as kernels include it
    (``"moe/direct/dispatch.cuh"``), or an absolute path; of its includes, the library's headers are read too.

    Raises LookupError if there is none, and ValueError for a declaration that this parser does not know.
    """
    return _read(str(header)).struct(name)


@functools.cache
def header_constant(header: str, name: str) -> int:
    """The value of a ``constexpr`` integer or an enumerator of ``header`` or of a header that it includes.

    Raises LookupError if there is none.
    """
    return _read(header).constant(name)


@functools.cache
def enumerators(header: str, name: str) -> dict[str, int]:
    """The enumerators of the enum ``name``, in order. Raises LookupError if there is no such enum."""
    file = _read(header)
    for _, match in file.matches(_ENUM):
        if match[1] == name:
            return file.enumerators(match)
    raise LookupError(f"<{header}> and what it includes have no enum {name}")


@functools.cache
def _read(header: str) -> _Headers:
    return _Headers(header)


class _Headers:
    """A header, and those that it includes."""

    def __init__(self, header: str) -> None:
        self.header = header
        self.texts: dict[str, str] = {}
        waiting = [header]
        while waiting:
            name = waiting.pop()
            path = next((root / name for root in _ROOTS if (root / name).is_file()), None)
            if name in self.texts or path is None:
                continue
            self.texts[name] = without_comments(path.read_text(encoding="utf-8"), keep_strings=True)
            included = _INCLUDE.findall(self.texts[name])
            waiting += [system or str(path.parent / beside) for system, beside in reversed(included)]
        if header not in self.texts:
            roots = " or ".join(map(str, _ROOTS))
            raise LookupError(f"there is no header <{header}> in {roots}; name a file elsewhere by its absolute path")

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
        return ((text, match) for text in self.texts.values() for match in pattern.finditer(text))

    def struct(self, name: str) -> HeaderStruct:
        for text, match in self.matches(_STRUCT):
            if match[2] == name:
                least = self._number(match[1]) if match[1] else 1
                space = "::".join([*_namespaces(text, match.start()), name])
                return self._lay_out(space, _members(text, match.end()), least)
        raise LookupError(f"<{self.header}> and what it includes have no struct {name}")

    def _lay_out(self, qualified: str, members: list[str], least_align: int) -> HeaderStruct:
        fields: list[Field] = []
        pointers: dict[str, tuple[int, int]] = {}
        end, most = 0, least_align
        for member in members:
            for name, kind, align, element in self._declared(qualified, member):
                offset = -(-end // align) * align
                fields.append(Field(name, kind, offset))
                if element is not None:
                    pointers[name] = offset, element
                end, most = offset + kind.itemsize, max(most, align)
        return HeaderStruct(qualified, tuple(fields), -(-max(end, 1) // most) * most, most, pointers)

    def _declared(self, struct: str, member: str) -> Iterator[tuple[str, np.dtype[Any], int, int | None]]:
        """Name, type and alignment of what one declaration declares, and the size of a pointer's elements (0: of no
        scalars): ``int a, b;`` are two."""
        base = ""
        for declarator in member.partition("=")[0].split(","):
            words = [word for word in _TOKEN.findall(declarator) if word not in ("const", "volatile")]
            names = [word for word in words if word[0] not in "*["]
            if not names or "".join(words) != re.sub(r"\s|\b(const|volatile)\b", "", declarator):
                raise ValueError(f"{struct} in <{self.header}>: cannot read the member {member!r}")
            base = " ".join(names[:-1]) or base
            element = np.dtype(_SCALARS.get(base, "V")).itemsize if words.count("*") == 1 else None
            kind, align = (np.dtype("u8"), 8) if "*" in words else self._type(struct, base)
            for extent in reversed([word for word in words if word[0] == "["]):
                kind = np.dtype((kind, (self._number(extent[1:-1]),)))
            yield names[-1], kind, align, element

    def _type(self, struct: str, name: str) -> tuple[np.dtype[Any], int]:
        if name in _SCALARS:
            kind = np.dtype(_SCALARS[name])
            return kind, kind.itemsize
        name = name.rpartition("::")[2]
        for _, match in self.matches(_ENUM):
            if match[1] == name:
                return self._type(struct, match[2].strip() if match[2] else "int")
        try:
            inner = self.struct(name)
        except LookupError:
            raise ValueError(f"{struct} in <{self.header}>: cannot read the type {name!r}") from None
        return np.dtype(inner.dtype), inner.align

    def constant(self, name: str) -> int:
        for _, match in self.matches(_CONSTANT):
            if match[1] == name:
                return self._number(match[2])
        for _, match in self.matches(_ENUM):
            values = self.enumerators(match)
            if name in values:
                return values[name]
        raise LookupError(f"<{self.header}> and what it includes have no integer constant {name}")

    def enumerators(self, match: re.Match[str]) -> dict[str, int]:
        values: dict[str, int] = {}
        following = 0
        for item in filter(str.strip, match[3].split(",")):
            name, _, value = (part.strip() for part in item.partition("="))
            following = self._number(value, values) if value else following
            values[name] = following
            following += 1
        return values

    def _number(self, text: str, known: dict[str, int] | None = None) -> int:
        """The value of a constant expression of integers."""
        plain = re.sub(r"\b(0[xX][\da-fA-F]+|\d[\d']*)[uUlL]+\b", r"\1", text).replace("'", "").strip()
        plain = re.sub(r"\bsizeof\s*\(([\w:]+)\)", lambda match: str(self._type(text, match[1])[0].itemsize), plain)
        return self._evaluate(ast.parse(plain.replace("::", "."), mode="eval").body, text, known or {})

    def _evaluate(self, node: ast.expr, text: str, known: dict[str, int]) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = (self._evaluate(side, text, known) for side in (node.left, node.right))
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._evaluate(node.operand, text, known)
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            return known[name] if name in known else self.constant(name)
        raise ValueError(f"<{self.header}>: cannot evaluate {text.strip()!r}")


def _members(text: str, begin: int) -> list[str]:
    """The declarations of data in a struct whose body begins at ``begin``; functions are left out."""
    members, start, depth, at = [], begin, 0, begin
    while depth >= 0:
        char = text[at]
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0 and "(" in text[start:at].partition("{")[0]:
                start = at + 1  # a function's body ended
        elif char == ";" and depth == 0:
            member = text[start:at].partition("{")[0].strip()
            if "(" not in member and not member.startswith(("using ", "static ", "typedef ", "friend ")):
                members.append(member)
            start = at + 1
        at += 1
    return [member for member in members if member]


def _namespaces(text: str, position: int) -> list[str]:
    """The namespaces that are open at ``position``."""
    inside = []
    for match in _NAMESPACE.finditer(text, 0, position):
        between = text[match.end() : position]
        depth, least = 0, 0
        for brace in re.findall(r"[{}]", between):
            depth += 1 if brace == "{" else -1
            least = min(least, depth)
        if least == 0:
            inside.append(match[1])
    return inside

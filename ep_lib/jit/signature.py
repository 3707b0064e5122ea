"""The parameters of a kernel: their kinds, and the table of them in a compiled kernel."""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

Kind = Literal["int", "uint", "float", "bool", "pointer", "struct"]

_TABLE_MAGIC = 0x45504B54  # the table's format: ep_lib/device/ep/detail/entry.cuh
_KINDS: tuple[Kind, ...] = ("int", "uint", "float", "bool", "pointer", "struct")  # the first is number 1 there
_POINTS_TO_CONST = 1
_ELEMENT_SHIFT, _ELEMENT_SIZE_SHIFT = 8, 16
_ELEMENTS = ("", "int", "uint", "float", "bool", "pointer", "bfloat16", "half", "e4m3", "e5m2")


_NAMES = {"half": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "pointer": "uint64"}


class Param(NamedTuple):
    """One parameter of a kernel: its kind, ``size`` and ``align`` in bytes.

    For pointers also ``is_const``: the kernel only reads through it; ``element``: the type that it points to, "" for
    bytes, void and classes, which fit any type; ``element_size`` in bytes.
    """

    kind: Kind
    size: int
    align: int
    is_const: bool = False
    element: str = ""
    element_size: int = 0

    def __str__(self) -> str:
        if self.kind in ("int", "uint", "float"):
            return f"{self.kind}{8 * self.size}"
        return f"struct of {self.size} bytes" if self.kind == "struct" else self.kind

    @property
    def element_name(self) -> str:
        """The type that a pointer points to, by its name in NumPy and ml_dtypes."""
        if self.element in ("int", "uint", "float"):
            return f"{self.element}{8 * self.element_size}"
        return _NAMES.get(self.element, self.element)


def parse_table(table: bytes) -> tuple[Param, ...]:
    """Decodes the table that ``EP_KERNEL_ENTRY`` puts into a compiled kernel."""
    magic, count = struct.unpack_from("<II", table)
    if magic != _TABLE_MAGIC:
        raise ValueError(f"not a table of kernel parameters: it starts with {magic:#x}")
    rows = [struct.unpack_from("<IIII", table, 8 + 16 * i) for i in range(count)]
    return tuple(
        Param(
            _KINDS[kind - 1],
            size,
            align,
            bool(flags & _POINTS_TO_CONST),
            _ELEMENTS[flags >> _ELEMENT_SHIFT & 0xFF],
            flags >> _ELEMENT_SIZE_SHIFT,
        )
        for kind, size, align, flags in rows
    )

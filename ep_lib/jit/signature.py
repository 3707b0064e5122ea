"""The parameters of a kernel: what kinds there are, and the table in which a compiled kernel lists its own."""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

Kind = Literal["int", "uint", "float", "bool", "pointer", "struct"]

_TABLE_MAGIC = 0x45504B54  # the table's format: ep_lib/device/ep/detail/entry.cuh
_KINDS: tuple[Kind, ...] = ("int", "uint", "float", "bool", "pointer", "struct")  # the first is number 1 there
_POINTS_TO_CONST = 1


class Param(NamedTuple):
    """One parameter of a kernel: its kind, ``size`` and ``align`` in bytes.

    ``is_const`` is meant for pointers: the kernel only reads through it.
    """

    kind: Kind
    size: int
    align: int
    is_const: bool = False

    def __str__(self) -> str:
        if self.kind in ("int", "uint", "float"):
            return f"{self.kind}{8 * self.size}"
        return f"struct of {self.size} bytes" if self.kind == "struct" else self.kind


def parse_table(table: bytes) -> tuple[Param, ...]:
    """Decodes the table that ``EP_KERNEL_ENTRY`` puts into a compiled kernel."""
    magic, count = struct.unpack_from("<II", table)
    if magic != _TABLE_MAGIC:
        raise ValueError(f"not a table of kernel parameters: it starts with {magic:#x}")
    rows = [struct.unpack_from("<IIII", table, 8 + 16 * i) for i in range(count)]
    return tuple(
        Param(_KINDS[kind - 1], size, align, bool(flags & _POINTS_TO_CONST)) for kind, size, align, flags in rows
    )

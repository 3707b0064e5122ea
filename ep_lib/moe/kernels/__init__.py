"""The kernels of :class:`ep_lib.Buffer` as Python sees them: one ``.cu`` file each, and the structs they take.

The code is in ``ep_lib/device/ep/{layout,notify,route,dispatch_bulk,combine_*,pcie_*}.cuh``; the ``.cu`` files give
it entry points. The dtypes below mirror the structs there, field by field; a launch compares the sizes, a test the
offsets.
"""

from __future__ import annotations

import functools
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Kernel

_HERE = Path(__file__).parent


def struct(*fields: tuple[str, Any]) -> np.dtype[Any]:
    """A C struct: fields in order, each at a multiple of its size. Pointers are u8."""
    return np.dtype(list(fields), align=True)


PCIE_RINGS = struct(
    ("staging", "u8"),
    ("slots", "u8"),
    ("arrived", "u8"),
    ("credits", "u8"),
    ("sent", "u8"),
    ("taken", "u8"),
    ("readers", "u8"),
    ("channels", "i4"),
    ("num_slots", "i4"),
    ("slot_bytes", "i4"),
    ("merged", "i4"),
)

PCIE_MEET_ARGS = struct(
    ("inbox", "u8"),
    ("outbox", "u8"),
    ("signals", "u8"),
    ("operation", "u8"),
    ("note", "u8"),
    ("message_bytes", "i4"),
    ("channels", "i4"),
    ("num_tokens", "i4"),
    ("experts_per_rank", "i4"),
    ("with_counts", "i4"),
)

PCIE_DISPATCH_ARGS = struct(
    ("rings", PCIE_RINGS),
    ("num_tokens", "i4"),
    ("row_bytes", "i4"),
    ("scale_bytes", "i4"),
    ("packet_bytes", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
)

TOKENS = struct(("rows", "u8"), ("scales", "u8"), ("topk_idx", "u8"), ("weights", "u8"))

ARRIVALS = struct(("rows", "u8"), ("scales", "u8"), ("topk", "u8"), ("weights", "u8"), ("source", "u8"))

PCIE_COMBINE_ARGS = struct(
    ("rings", PCIE_RINGS), ("num_tokens", "i4"), ("row_vectors", "i4"), ("top_k", "i4"), ("experts_per_rank", "i4")
)

MAX_WARPS = 32  # kMaxWarps in <moe/common/layout.cuh>
PLACE_BYTES = 24  # sizeof(ep::Place)
MAX_PCIE_RANKS = 32  # kMaxPcieRanks in <moe/pcie/rings.cuh>


def pack(dtype: np.dtype[Any], **fields: Any) -> bytes:
    """A struct argument; every field must be named. A struct inside it is given as what this function made of it."""
    names, layout = _layout_of(dtype)
    if len(fields) != len(names):
        raise TypeError(f"need exactly the fields {names}, got {tuple(fields)}")
    try:
        return layout.pack(*[fields[name] for name in names])
    except KeyError as missing:
        raise TypeError(f"need exactly the fields {names}, got {tuple(fields)}") from missing


_CODES = {"i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f"}


@functools.cache
def _layout_of(dtype: np.dtype[Any]) -> tuple[tuple[str, ...], Struct]:
    """The names of the fields, and how :mod:`struct` writes them; much quicker than NumPy's structured scalars."""
    code, end = "<", 0
    for name in dtype.names or ():
        assert dtype.fields is not None
        kind, offset = dtype.fields[name][:2]
        code += f"{offset - end}x" + (_CODES.get(kind.str[1:]) or f"{kind.itemsize}s")
        end = offset + kind.itemsize
    return dtype.names or (), Struct(f"{code}{dtype.itemsize - end}x")


@functools.cache
def kernel(name: str, template: str = "", entry: str = "") -> Kernel:
    """The kernel ``ep_<entry>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``); ``entry`` is
    ``name`` where the file has one kernel."""
    return Kernel.from_file(_HERE / f"{name}.cu", f"ep_{entry or name}{template}")

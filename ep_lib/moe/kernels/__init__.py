"""The kernels of :class:`ep_lib.Buffer` as Python sees them: one ``.cu`` file each, and the structs they take.

The code is in ``ep_lib/device/ep/{layout,notify,dispatch,combine}.cuh``; the ``.cu`` files only give it an entry point.
The dtypes below mirror the structs there, field by field; a launch compares the sizes, a test the offsets.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Kernel

_HERE = Path(__file__).parent


def _struct(*fields: tuple[str, Any]) -> np.dtype[Any]:
    """A C struct: fields in order, each at a multiple of its size. Pointers are u8."""
    return np.dtype(list(fields), align=True)


SIGNALS = _struct(("flags", "u8"), ("notes", "u8"), ("operation", "u8"))

LAYOUT_ARGS = _struct(("num_tokens", "i4"), ("top_k", "i4"), ("experts_per_rank", "i4"))

NOTIFY_ARGS = _struct(
    ("signals", SIGNALS), ("counts", "u8"), ("expert_counts", "u8"), ("experts_per_rank", "i4"), ("options", "i4")
)

DISPATCH_ARGS = _struct(
    ("signals", SIGNALS),
    ("rows", "u8"),
    ("recv_topk", "u8"),
    ("recv_weights", "u8"),
    ("recv_source", "u8"),
    ("finished_blocks", "u8"),
    ("num_tokens", "i4"),
    ("row_vectors", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
    ("send_routing", "i4"),
)

STAGE_ARGS = _struct(
    ("signals", SIGNALS),
    ("rows", "u8"),
    ("finished_blocks", "u8"),
    ("note", "u8"),
    ("previous_operation", "u8"),
    ("num_vectors", "i8"),
)

COMBINE_ARGS = _struct(
    ("signals", SIGNALS),
    ("rows", "u8"),
    ("finished_blocks", "u8"),
    ("num_tokens", "i4"),
    ("row_vectors", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
)

NUM_SIGNALS = 5  # kNumSignals in <ep/notify.cuh>
MAX_WARPS = 32  # kMaxWarps in <ep/layout.cuh>
PLACE_BYTES = 24  # sizeof(ep::Place)


def pack(dtype: np.dtype[Any], **fields: Any) -> Any:
    """A struct argument; every field must be named."""
    if set(fields) != set(dtype.names or ()):
        raise TypeError(f"need exactly the fields {dtype.names}, got {tuple(fields)}")
    return np.array(tuple(fields[name] for name in dtype.names or ()), dtype=dtype)[()]


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep_<name>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``)."""
    return Kernel.from_file(_HERE / f"{name}.cu", f"ep_{name}{template}")

"""In what form rows travel: of the Buffer's dtype, or of few bits with scales beside them.

Numbers and scales are those of :mod:`ep_lib.reference`, which also names the documents they come from. Kernels only
move them, whatever they mean (<moe/direct/side_rows.cuh>); this file says how many bytes there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.reference import FP8, FP8_GROUP, MXFP8_GROUP, NVFP4_GROUP

UINT8 = np.dtype(np.uint8)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
ROW_SCALE_BYTES = VECTOR_BYTES  # of a side row, which begins with the row's scale if there is one
_ONE_E8M0 = 0x7F7F7F7F  # four scales of 1


class RowFormat(NamedTuple):
    """One form; ``code`` is what the ranks compare."""

    code: int
    name: str  # for messages
    columns: int  # numbers, or bytes with two numbers each
    dtype: np.dtype[Any]
    scale_columns: int = 0
    scale_dtypes: tuple[np.dtype[Any], ...] = (FLOAT32,)  # that a caller may pass; the first one is what casts make
    has_row_scale: bool = False  # float32, beside the other scales
    padding: int = 0  # scales of rows of zeros, as a word

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, without its scales."""
        return self.columns * self.dtype.itemsize

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales, without the row scale."""
        return self.scale_columns * self.scale_dtypes[0].itemsize

    @property
    def side_bytes(self) -> int:
        """Bytes of the side row."""
        if not self.has_row_scale:
            return self.scale_bytes
        return ROW_SCALE_BYTES + -(-self.scale_bytes // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def is_apart(self) -> bool:
        """Whether side rows lie in memory of their own; else they stand behind the rows of a receive area."""
        return self.code <= 1


PLAIN, FP8_FLOAT32, FP8_UE8M0, FP8_UE8M0_PACKED, MXFP8, MXFP8_PACKED, NVFP4, NVFP4_ROWS = range(8)
# What quantize= of a dispatch may be: the form that results, and its name in <ep/block_scales.cuh>.
CASTS = {
    "fp8": (FP8_FLOAT32, "kFp8"),
    "ue8m0": (FP8_UE8M0, "kUe8m0"),
    "mxfp8": (MXFP8, "kMxfp8"),
    "nvfp4": (NVFP4_ROWS, "kNvfp4"),
}


def row_formats(config: BufferConfig) -> list[RowFormat | None]:
    """All forms by their codes, for rows as long as the Buffer's; None where the length does not fit."""
    hidden, e8m0, packed, e4m3 = config.hidden, (UINT8, E8M0), (INT32,), (FP8, UINT8)
    found: list[RowFormat | None] = [RowFormat(PLAIN, f"{config.dtype.name} rows", hidden, config.dtype)]
    found += [None] * NVFP4_ROWS
    if hidden % FP8_GROUP == 0:
        groups, name = hidden // FP8_GROUP, "FP8 rows with scales"
        found[FP8_FLOAT32] = RowFormat(FP8_FLOAT32, name, hidden, FP8, groups)
        found[FP8_UE8M0] = RowFormat(FP8_UE8M0, f"{name} (UE8M0)", hidden, FP8, groups, e8m0, padding=_ONE_E8M0)
        found[FP8_UE8M0_PACKED] = RowFormat(
            FP8_UE8M0_PACKED, f"{name} (packed UE8M0)", hidden, FP8, -(-groups // 4), packed, padding=_ONE_E8M0
        )
    if hidden % MXFP8_GROUP == 0:  # NVFP4's 16 as well; its rows are whole vectors then
        blocks = hidden // MXFP8_GROUP
        found[MXFP8] = RowFormat(MXFP8, "MXFP8 rows", hidden, FP8, blocks, e8m0, padding=_ONE_E8M0)
        found[MXFP8_PACKED] = RowFormat(
            MXFP8_PACKED, "MXFP8 rows (packed scales)", hidden, FP8, -(-blocks // 4), packed, padding=_ONE_E8M0
        )
        halves, scales = hidden // 2, hidden // NVFP4_GROUP
        found[NVFP4] = RowFormat(NVFP4, "NVFP4 rows", halves, UINT8, scales, e4m3)
        found[NVFP4_ROWS] = RowFormat(NVFP4_ROWS, "NVFP4 rows with row scales", halves, UINT8, scales, e4m3, True)
    return found

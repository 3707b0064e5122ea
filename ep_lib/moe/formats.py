"""The forms of transferred rows: the Buffer's dtype, or few bits with scales.

:mod:`ep_lib.reference` defines numbers and scales, and names the documents that they come from; it has constants of its
own, so that tests find a wrong one here. Kernels only move numbers and scales (<moe/direct/side_rows.cuh>); this file
has their sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_GROUP, MXFP8_GROUP, NVFP4_GROUP = 128, 32, 16  # elements that share a scale
UINT8 = np.dtype(np.uint8)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
ROW_SCALE_BYTES = VECTOR_BYTES  # the bytes of a row scale, with which a side row begins
_ONE_E8M0 = 0x7F7F7F7F  # four scales of 1


PLAIN, FP8_FLOAT32, FP8_UE8M0, FP8_UE8M0_PACKED, MXFP8, MXFP8_PACKED, NVFP4, NVFP4_ROWS = range(8)


class RowFormat(NamedTuple):
    """One form; the ranks compare ``code``."""

    code: int
    name: str  # for messages
    columns: int  # numbers, or bytes with two numbers each
    dtype: np.dtype[Any]
    row_bytes: int  # of one row, without its scales
    scale_columns: int
    scale_dtypes: tuple[np.dtype[Any], ...]  # dtypes that a caller may pass; casts make the first one
    scale_bytes: int  # of a row's scales, without the row scale
    side_bytes: int  # of the side row
    has_row_scale: bool  # float32, beside the other scales
    is_apart: bool  # side rows are in memory of their own; else behind the rows of a receive area
    padding: int  # scales of rows of zeros, as a word


def _form(
    code: int,
    name: str,
    columns: int,
    dtype: np.dtype[Any],
    scale_columns: int = 0,
    scale_dtypes: tuple[np.dtype[Any], ...] = (FLOAT32,),
    *,
    has_row_scale: bool = False,
    padding: int = 0,
) -> RowFormat:
    scale_bytes = side_bytes = scale_columns * scale_dtypes[0].itemsize
    if has_row_scale:
        side_bytes = ROW_SCALE_BYTES + -(-scale_bytes // VECTOR_BYTES) * VECTOR_BYTES
    return RowFormat(
        code,
        name,
        columns,
        dtype,
        columns * dtype.itemsize,
        scale_columns,
        scale_dtypes,
        scale_bytes,
        side_bytes,
        has_row_scale,
        code <= FP8_FLOAT32,
        padding,
    )


# The values of quantize= of a dispatch: the resulting form, and its name in <ep/block_scales.cuh>.
CASTS = {
    "fp8": (FP8_FLOAT32, "kFp8"),
    "ue8m0": (FP8_UE8M0, "kUe8m0"),
    "mxfp8": (MXFP8, "kMxfp8"),
    "nvfp4": (NVFP4_ROWS, "kNvfp4"),
}


def row_formats(config: BufferConfig) -> list[RowFormat | None]:
    """All forms by code, for the Buffer's row length; None if the length does not fit."""
    hidden, e8m0, packed, e4m3 = config.hidden, (UINT8, E8M0), (INT32,), (FP8, UINT8)
    found: list[RowFormat | None] = [_form(PLAIN, f"{config.dtype.name} rows", hidden, config.dtype)]
    found += [None] * NVFP4_ROWS
    if hidden % FP8_GROUP == 0:
        groups, name = hidden // FP8_GROUP, "FP8 rows with scales"
        found[FP8_FLOAT32] = _form(FP8_FLOAT32, name, hidden, FP8, groups)
        found[FP8_UE8M0] = _form(FP8_UE8M0, f"{name} (UE8M0)", hidden, FP8, groups, e8m0, padding=_ONE_E8M0)
        found[FP8_UE8M0_PACKED] = _form(
            FP8_UE8M0_PACKED, f"{name} (packed UE8M0)", hidden, FP8, -(-groups // 4), packed, padding=_ONE_E8M0
        )
    if hidden % MXFP8_GROUP == 0:  # then NVFP4 fits, too: its groups, and its rows are whole vectors
        blocks = hidden // MXFP8_GROUP
        found[MXFP8] = _form(MXFP8, "MXFP8 rows", hidden, FP8, blocks, e8m0, padding=_ONE_E8M0)
        found[MXFP8_PACKED] = _form(
            MXFP8_PACKED, "MXFP8 rows (packed scales)", hidden, FP8, -(-blocks // 4), packed, padding=_ONE_E8M0
        )
        halves, scales = hidden // 2, hidden // NVFP4_GROUP
        found[NVFP4] = _form(NVFP4, "NVFP4 rows", halves, UINT8, scales, e4m3)
        found[NVFP4_ROWS] = _form(
            NVFP4_ROWS, "NVFP4 rows with row scales", halves, UINT8, scales, e4m3, has_row_scale=True
        )
    return found

"""Conversion between the forms of FP8 rows' scales: one float for 128 elements, one for a row, packed UE8M0."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ep_lib.errors import ArgumentError, NotSupportedError
from ep_lib.moe.formats import FP8_GROUP

_PACKED = 4  # exponents in an int32
_MANTISSA_BITS = 23  # of a float32, below its exponent
_LARGEST = 448.0  # of float8_e4m3fn
_SMALLEST_MAXIMUM = 1e-4  # of a group: smaller ones are not stretched further, as in DeepEP


def spread_scales(scales: Tensor, hidden: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """``scales`` as float32 ``[T, hidden / 128]``, and the inverse for received ones; both are lossless.

    They may be float32 ``[T, n]``, where n divides hidden / 128 (n = 1: a scale for a row), or ``[T]``; or int32
    ``[T, hidden / 512]``: four exponents in each (UE8M0); with any strides. Raises NotSupportedError for others.
    """
    groups = hidden // FP8_GROUP
    if scales.dtype == torch.int32 and scales.dim() == 2 and scales.shape[1] * _PACKED == groups:
        return unpack_ue8m0(scales), pack_ue8m0
    columns = scales.shape[1] if scales.dim() == 2 else 1
    if scales.dtype != torch.float32 or scales.dim() not in (1, 2) or columns == 0 or groups % columns:
        raise NotSupportedError(
            f"the scales of x are {scales.dtype} {list(scales.shape)}; they can be float32 [T, {groups}], or of fewer "
            f"columns that divide {groups}, or int32 [T, {groups // _PACKED}] of packed UE8M0"
        )
    if columns == groups:
        return scales.contiguous(), lambda came: came
    repeat, shape = groups // columns, scales.shape[1:]
    wide = scales.reshape(-1, columns).repeat_interleave(repeat, dim=1)
    return wide, lambda came: came[:, ::repeat].contiguous().view(-1, *shape)


def unpack_ue8m0(packed: Tensor) -> Tensor:
    """int32 ``[..., n]`` to float32 ``[..., 4 * n]``: powers of two."""
    exponents = torch.stack([packed >> 8 * byte & 255 for byte in range(_PACKED)], dim=-1).flatten(-2)
    return (exponents << _MANTISSA_BITS).view(torch.float32)


def pack_ue8m0(scales: Tensor) -> Tensor:
    """The inverse of :func:`unpack_ue8m0`."""
    exponents = scales.contiguous().view(torch.int32) >> _MANTISSA_BITS
    return exponents.to(torch.uint8).view(torch.int32)


def by_columns(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Uninitialised, with the last two dimensions column by column in memory, TMA's layout for scales."""
    *front, rows, columns = shape
    return torch.empty((*front, columns, rows), dtype=dtype, device=like.device).transpose(-1, -2)


def cast_with_powers_of_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """bfloat16 ``[..., hidden]`` to FP8 and scales, float32 ``[..., hidden / 128]``, that are powers of two: the
    smallest by which the group's largest element still fits (DeepEP's ``round_scale``)."""
    groups = rows.float().view(*rows.shape[:-1], -1, FP8_GROUP)
    most = groups.abs().amax(dim=-1).clamp(min=_SMALLEST_MAXIMUM) / _LARGEST
    mantissa, exponent = torch.frexp(most)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)  # an exact power of two needs no larger scale
    scales = torch.ldexp(torch.ones_like(most), exponent)
    cast = (groups / scales.unsqueeze(-1)).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return cast.flatten(-2), scales


def require_groups(hidden: int, ue8m0: bool) -> None:
    """Raises ArgumentError unless rows of that width consist of whole groups (of packed exponents)."""
    step = FP8_GROUP * (_PACKED if ue8m0 else 1)
    if hidden % step:
        raise ArgumentError(f"hidden is {hidden}; {'use_ue8m0' if ue8m0 else 'FP8'} wants a multiple of {step}")

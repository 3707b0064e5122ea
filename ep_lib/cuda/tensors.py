"""Makes torch tensors on a GPU with minimal overhead."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=1024)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous array in elements, as in torch."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def torch_empty(dtype: np.dtype[Any], device: int) -> Callable[[tuple[int, ...]], Any]:
    """``make(shape)``: an uninitialised tensor on the GPU ``device``, from torch's own allocator.

    Uses the function that torch's own compiled code calls, if torch has it (2.2 and later): it skips torch's modes and
    the parsing of options, which take half of torch.empty's time, and more after ``torch.set_default_device``.
    """
    torch = sys.modules["torch"]
    kind, place = getattr(torch, dtype.name), torch.device("cuda", device)
    quick, current = _quick(), torch._C._cuda_getDevice

    def make(shape: tuple[int, ...]) -> Any:
        if quick is not None and current() == device:  # it has no device argument
            return quick(shape, _strides(shape), kind)
        return torch.empty(shape, dtype=kind, device=place)

    return make


@functools.cache
def _quick() -> Any:
    guards = getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None)


def maker(dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """torch's function of (sizes, strides, dtype) that makes tensors on the current GPU, and its dtype; None if torch
    lacks it."""
    quick = _quick()
    return None if quick is None else (quick, getattr(sys.modules["torch"], dtype.name))

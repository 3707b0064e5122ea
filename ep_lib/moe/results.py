"""Arrays for results, of the caller's own kind: made without a copy, and without a kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ep_lib.memory.arrays import like
from ep_lib.runtime.rank import Rank


class Results:
    """Makes arrays that kernels of ``rank`` may write, as NumPy, CuPy or torch ("kind") would make them."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._torch: dict[np.dtype[Any], Callable[..., Any]] = {}  # torch.empty for each dtype

    def empty(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Uninitialised. bfloat16 and FP8 are uint16 and uint8 in CuPy. torch's come from torch's own allocator, which
        knows about its streams and graphs."""
        rank = self._rank
        if kind == "torch" and rank.backend == "cuda":
            made = self._torch.get(dtype)
            if made is None:
                torch = sys.modules["torch"]
                device = torch.device("cuda", torch.cuda.current_device())
                made = self._torch[dtype] = partial(torch.empty, dtype=getattr(torch, dtype.name), device=device)
            return made(shape)
        if kind == "cupy" and dtype.isbuiltin == 2:  # registered with NumPy by ml_dtypes
            dtype = np.dtype(f"u{dtype.itemsize}")
        return as_kind(kind, rank.empty(shape, dtype), dtype)


def as_kind(kind: str, array: Any, dtype: np.dtype[Any]) -> Any:
    """An array of the rank's module as one of the caller's kind, and of ``dtype`` where that kind has it."""
    if kind == "numpy":
        return array.view(dtype)
    result = like(kind, array)
    if kind == "torch" and array.dtype != dtype:
        import torch

        return result.view(getattr(torch, dtype.name))
    return result

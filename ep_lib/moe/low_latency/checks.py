"""Bad input of low-latency mode is refused here, by shapes and types alone: nothing waits for the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError
from ep_lib.memory.arrays import BFLOAT16, ArrayInfo, is_array, like
from ep_lib.moe.checks import describe_here
from ep_lib.moe.low_latency.config import LowLatencyConfig
from ep_lib.reference import FP8_GROUP

_VECTOR_BYTES = 16
_INDEX_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class LowLatencyChecks:
    """Checks arrays against the config and the device that kernels run on ("cpu" or "cuda:N").

    ``look``: whether arrays lie in host memory, so that their values may be looked at, too.
    """

    def __init__(self, config: LowLatencyConfig, device: str, look: bool) -> None:
        self._config, self._device, self._look = config, device, look

    def tokens(self, x: Any) -> str:
        """``[T, hidden]`` bfloat16; returns the kind of array."""
        info = self._rows("x", x, ("T", self._config.hidden))
        if info.shape[0] > self._config.max_tokens:
            raise ArgumentError(
                f"x has {info.shape[0]} tokens, but this Buffer was made for at most "
                f"num_max_dispatch_tokens_per_rank={self._config.max_tokens}; send fewer, or make a larger Buffer"
            )
        return info.kind

    def expert_rows(self, x: Any) -> None:
        """``[experts_per_rank, capacity, hidden]`` bfloat16."""
        self._rows("x", x, (self._config.experts_per_rank, self._config.capacity, self._config.hidden))

    def out(self, array: Any, num_tokens: int) -> str:
        """``[num_tokens, hidden]`` bfloat16 that may be written; returns the kind of array."""
        info = self._rows("out", array, (num_tokens, self._config.hidden))
        if info.readonly:
            raise ArgumentError("out is read-only")
        return info.kind

    def can_quantize(self) -> None:
        """FP8 needs whole groups of elements."""
        hidden = self._config.hidden
        if hidden % FP8_GROUP:
            raise ArgumentError(
                f"use_fp8 needs a scale for every {FP8_GROUP} elements, and hidden is {hidden}, which is not a "
                "multiple; pass use_fp8=False"
            )

    def topk_idx(self, array: Any, num_tokens: int) -> str:
        """``[T, top_k]`` expert ids; returns the kind of array."""
        info = self._top_k("topk_idx", array, num_tokens)
        if info.dtype not in _INDEX_TYPES:
            raise ArgumentError(f"topk_idx has dtype {info.dtype.name}; expert ids must be int64 or int32")
        if self._look:
            ids = like("numpy", array)
            bad = (ids < -1) | (ids >= self._config.num_experts)
            if bad.any():
                token, k = np.argwhere(bad)[0]
                raise ArgumentError(
                    f"topk_idx[{token}, {k}] is {ids[token, k]}; expert ids go from 0 to "
                    f"{self._config.num_experts - 1}, and -1 means not routed"
                )
        return info.kind

    def topk_weights(self, array: Any, num_tokens: int) -> None:
        """``[T, top_k]`` float32."""
        info = self._top_k("topk_weights", array, num_tokens)
        if info.dtype != np.float32:
            raise ArgumentError(f"topk_weights has dtype {info.dtype.name}; weights must be float32")

    def _top_k(self, name: str, array: Any, num_tokens: int) -> ArrayInfo:
        info = self._describe(name, array)
        if info.shape != (num_tokens, self._config.top_k):
            raise ArgumentError(
                f"{name} has shape {info.shape}; it must be ({num_tokens}, {self._config.top_k}): a row for each token "
                f"of the dispatch, and the Buffer's top_k={self._config.top_k}"
            )
        return info

    def _rows(self, name: str, array: Any, shape: tuple[int | str, ...]) -> ArrayInfo:
        info = self._describe(name, array)
        fits = len(info.shape) == len(shape) and all(
            isinstance(want, str) or got == want for got, want in zip(info.shape, shape, strict=True)
        )
        if not fits:
            raise ArgumentError(f"{name} has shape {info.shape}; it must be ({', '.join(map(str, shape))})")
        as_bits = info.kind == "cupy" and info.dtype == np.uint16
        if info.dtype != BFLOAT16 and not as_bits:
            hint = " (CuPy has no bfloat16: view it as uint16)" if info.kind == "cupy" else ""
            raise ArgumentError(f"{name} has dtype {info.dtype.name}; low-latency mode takes bfloat16{hint}")
        if info.address % _VECTOR_BYTES and info.nbytes:
            raise ArgumentError(
                f"{name} begins at address 0x{info.address:x}, which is not a multiple of {_VECTOR_BYTES} bytes; "
                "pass a copy of it"
            )
        return info

    def _describe(self, name: str, array: Any) -> ArrayInfo:
        if not is_array(array):  # by its type alone: a repr would look at values
            raise ArgumentError(f"{name} is a {type(array).__name__}; it must be a NumPy, torch or CuPy array")
        info = describe_here(name, array, self._device)
        if info.strides_bytes is not None:
            raise ArgumentError(f"{name} is not contiguous: strides are {info.strides_bytes} bytes; pass a copy of it")
        return info

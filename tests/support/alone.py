"""One launch on a world of one rank, on any backend."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import ep_lib


def alone(backend: str, main: Callable[[ep_lib.Rank], Any]) -> Any:
    """``main(rank)`` on a world of one rank. On CUDA all tests share this process's rank: starting one takes long."""
    if backend == "emulator":
        return ep_lib.spawn(main, 1, "emulator")[0]
    return main(_cuda_rank())


@functools.lru_cache(maxsize=1)
def _cuda_rank() -> ep_lib.Rank:
    rank = ep_lib.init("cuda")
    atexit.register(rank.close)
    return rank


def launched(
    backend: str, kernel: ep_lib.Kernel, grid: Any, block: Any, *args: Any, shared_bytes: int = 0
) -> list[Any]:
    """Every NumPy array among the arguments as the kernel left its copy on the device."""

    def main(rank: ep_lib.Rank) -> list[Any]:
        passed = [rank.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        kernel.launch(rank, grid, block, *passed, shared_bytes=shared_bytes)
        return [rank.to_host(there).copy() for there, arg in zip(passed, args, strict=True) if there is not arg]

    return list(alone(backend, main))

"""The limits of a launch, the same on every backend (CUDA C++ Programming Guide, Compute Capabilities, 8.0 to 10.0)."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ep_lib.errors import KernelLaunchError

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 << 10


def _dimensions(
    kernel: str, what: str, value: int | Sequence[int], limits: tuple[int, int, int]
) -> tuple[int, int, int]:
    try:
        given = [operator.index(v) for v in (value if isinstance(value, Sequence) else (value,))]
    except TypeError:
        given = []
    if not 1 <= len(given) <= 3:
        raise KernelLaunchError(f"kernel '{kernel}': {what} is {value!r}; it must be 1 to 3 whole numbers")
    full = (*given, 1, 1)[:3]
    for name, number, limit in zip("xyz", full, limits, strict=True):
        if not 1 <= number <= limit:
            raise KernelLaunchError(f"kernel '{kernel}': {what}.{name} is {number}; it must be from 1 to {limit}")
    return full[0], full[1], full[2]


def launch_dimensions(
    kernel: str, grid: int | Sequence[int], block: int | Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three numbers each. Raises KernelLaunchError if a GPU would refuse them."""
    grid3 = _dimensions(kernel, "grid", grid, MAX_GRID)
    block3 = _dimensions(kernel, "block", block, MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > MAX_THREADS:
        raise KernelLaunchError(
            f"kernel '{kernel}': a block of {block3} has {threads} threads; a GPU allows {MAX_THREADS}"
        )
    return grid3, block3


def check_shared_bytes(kernel: str, static: int, dynamic: int) -> None:
    """Raises KernelLaunchError if a block would need more shared memory than a GPU has."""
    if dynamic < 0:
        raise KernelLaunchError(f"kernel '{kernel}': shared_bytes is {dynamic}; it cannot be negative")
    if static + dynamic > MAX_SHARED_BYTES:
        raise KernelLaunchError(
            f"kernel '{kernel}': {static} bytes of static and {dynamic} of dynamic shared memory are more than the "
            f"{MAX_SHARED_BYTES} bytes that a block can have"
        )

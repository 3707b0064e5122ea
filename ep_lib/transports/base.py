"""What every transport offers, and two collective helpers for those that set one up.

A transport owns the symmetric heap. Kernels' sources do not change: ``ep::peer_ptr`` works wherever loads and stores
reach the peer; ``ep::net_*`` are stores with ``p2p``, NVSHMEM's operations with ``nvshmem`` and those of NIXL's device
API with ``nixl``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ep_lib.bootstrap import Bootstrap
from ep_lib.cuda.devices import import_cupy
from ep_lib.errors import BackendUnavailable, EpError
from ep_lib.jit.source import KernelSource

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage

GRANULE = 2 * 2**20  # bytes of a GPU's page: heaps of whole pages share none with anything else
T = TypeVar("T")


class Transport(Protocol):
    """One object a rank. ``addresses``: each rank's heap as this rank addresses it, 0 where it cannot."""

    name: str
    bytes: int
    addresses: list[int]

    def compile(self, kernel: KernelSource, arch: str) -> NvrtcImage:
        """The kernel for GPUs of ``arch``, made for this transport."""
        ...

    def introduce(self, module: int, image: NvrtcImage) -> None:
        """Told of a module (CUmodule) that was just loaded, before its first launch."""
        ...

    def close(self, *, orderly: bool) -> None:
        """Give the memory back. ``orderly``: all ranks call this, and nobody frees what another still uses."""
        ...


def meet(bootstrap: Bootstrap, timeout: float) -> bool:
    """Whether all ranks came to close; a rank that failed must not keep the others from it."""
    try:
        bootstrap.all_gather(("close()", None), timeout)  # a rank elsewhere sees what we are in
    except EpError:
        return False
    return True


def agree(bootstrap: Bootstrap, step: Callable[[], T], timeout: float) -> list[T]:
    """Run ``step`` on every rank and gather the results; where it fails on one rank, it fails on all, at once.

    Without this, a rank that fails alone would leave the others waiting until their time limit.
    """
    failure: EpError | None = None
    result: Any = None
    try:
        result = step()
    except EpError as error:
        failure = error
    except import_cupy().cuda.runtime.CUDARuntimeError as error:
        failure = BackendUnavailable(f"rank {bootstrap.rank}: CUDA failed: {error}")
        failure.__cause__ = error
    outcomes = bootstrap.all_gather((str(failure) if failure else None, result), timeout)
    if failure is not None:
        raise failure
    for rank, (message, _) in enumerate(outcomes):
        if message is not None:
            raise BackendUnavailable(f"rank {rank} could not set up the cuda backend: {message}")
    return [value for _, value in outcomes]

"""The interface of every transport, on GPUs and on the emulator, and two collective helpers for their setup.

A transport owns the symmetric heap, compiles kernels so that ``ep::net_*`` are its operations (``ep/transport.cuh`` of
its folder), and registers every loaded module. Kernel sources are independent of it: ``ep::peer_ptr`` works wherever
loads and stores reach the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from ep_lib.bootstrap import Bootstrap
from ep_lib.bootstrap.base import CLOSE, within
from ep_lib.cuda.devices import import_cupy
from ep_lib.cuda.errors import OUT_OF_MEMORY, allocation_error
from ep_lib.errors import BackendUnavailable, EpError
from ep_lib.jit import nvrtc
from ep_lib.jit.nvrtc import NvrtcImage

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine
    from ep_lib.jit.kernel import Kernel

GRANULE = 2 * 2**20  # bytes of a GPU's page: heaps of whole pages share none with anything else
T = TypeVar("T")
Image = TypeVar("Image")  # a compiled kernel: NvrtcImage or EmulatorImage


@dataclass(frozen=True)
class GpuSetup:
    """The arguments for a GPU transport. ``device``: the index of this rank's GPU. ``timeout``: seconds of a host
    collective. ``variant``: the text behind the transport's name and a colon. ``unreachable``: the pairs of GPUs that
    do not reach each other by loads and stores, one sentence each."""

    bootstrap: Bootstrap
    device: int
    heap_bytes: int
    timeout: float
    variant: str = ""
    unreachable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EmulatorSetup:
    """The arguments for an emulator transport; the machine has the heaps of all ranks."""

    machine: Machine
    rank: int


class Module(Protocol):
    """A compiled kernel's module in this rank's memory."""

    @property
    def handle(self) -> int:
        """The CUmodule, or the emulator's counterpart."""

    def symbol(self, name: str) -> int | None:
        """The address of a variable of the module; None if there is none."""


class Transport(Protocol[Image]):
    """One object for each rank, made with a GpuSetup or an EmulatorSetup; making it is collective.

    ``addresses``: this rank's address of each rank's heap, 0 if loads and stores do not reach it.
    """

    name: str
    bytes: int
    addresses: list[int]

    def compile(self, kernel: Kernel, arch: str) -> Image:
        """The kernel for ``arch`` ("sm_90", "emulator"), compiled for this transport."""

    def register_module(self, module: Module, image: Image) -> None:
        """Registers a newly loaded module, before its first launch."""

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Free the memory. ``orderly``: all ranks call this, and memory is freed after no rank uses it any more;
        ``timeout``: seconds to wait for them (None: the setup's)."""


class GpuHeap:
    """What the symmetric heaps of GPUs share; making one is collective.

    Attributes: ``bytes``, ``addresses``, as of :class:`Transport`.
    """

    def __init__(self, setup: GpuSetup) -> None:
        self._bootstrap, self._timeout, self._device = setup.bootstrap, setup.timeout, setup.device
        self._rank = setup.bootstrap.rank
        self._cuda: Any = import_cupy().cuda
        self._runtime = self._cuda.runtime
        self.bytes = setup.heap_bytes
        self._size = -(-setup.heap_bytes // GRANULE) * GRANULE  # whole pages
        self.addresses: list[int] = []
        self._own = 0  # this rank's memory

    def compile(self, kernel: Kernel, arch: str) -> NvrtcImage:
        """For ``ep::net_*`` that are stores."""
        return nvrtc.compile_cubin(kernel, arch)

    def register_module(self, module: Module, image: NvrtcImage) -> None:
        """Nothing to do: kernels find peers by DeviceState alone."""

    def _allocate(self) -> None:
        """Takes zeroed memory of CUDA's. Raises OutOfSymmetricMemory."""
        try:
            self._own = int(self._runtime.malloc(self._size))
        except self._runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            free = self._runtime.memGetInfo()[0]
            raise allocation_error(self._rank, self._size, free, str(error)) from error
        self._clear()

    def _clear(self) -> None:
        self._runtime.memset(self._own, 0, self._size)
        self._runtime.deviceSynchronize()

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Leave. ``orderly``: all ranks call this; otherwise memory stays until the process ends: freeing it would wait
        for ranks that may be gone, and others may still have it mapped."""
        limit = self._timeout if timeout is None else timeout
        if self._own and orderly and closing_barrier(self._bootstrap, limit):
            self._leave(limit)
            self._own = 0

    def _leave(self, timeout: float) -> None:
        """Frees the memory, after no rank uses it any more."""
        raise NotImplementedError


@runtime_checkable
class CanFail(Protocol):
    """A transport with a part that may fail while kernels use it."""

    def failure(self) -> str:
        """Why it no longer works, one sentence; empty while it does."""


@runtime_checkable
class ServedByThreads(Protocol):
    """A transport whose threads call CUDA while kernels wait for them.

    CUDA may wait for running kernels when it loads another one, and blocks other threads' calls meanwhile: a kernel
    that waits for these threads would deadlock. So no kernel is loaded while kernels run.
    """

    serves_kernels: bool


def closing_barrier(bootstrap: Bootstrap, timeout: float) -> bool:
    """A barrier of ranks that close. False, not an error, if a rank failed: the others must be able to close."""

    def meet() -> bool:
        try:
            bootstrap.all_gather((CLOSE, None), timeout)  # a rank in another collective sees this name
        except EpError:
            return False
        return True

    return bool(within(timeout, meet))


def agree(bootstrap: Bootstrap, step: Callable[[], T], timeout: float) -> list[T]:
    """Run ``step`` on every rank and gather the results; if it fails on one rank, it fails on all, at once.

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

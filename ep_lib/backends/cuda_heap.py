"""The symmetric heap on GPUs: one cudaMalloc region a rank, opened by every other rank through CUDA IPC."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from ep_lib.backends.cuda_devices import identify, import_cupy, peer_problems
from ep_lib.backends.cuda_errors import OUT_OF_MEMORY, allocation_error
from ep_lib.errors import BackendUnavailable, EpError, RankMismatchError
from ep_lib.runtime.bootstrap import Bootstrap

_GRANULE = 2 * 2**20  # an IPC handle covers whole pages of 2 MiB: share nothing but the heap
T = TypeVar("T")


class IpcHeap:
    """Allocated, zeroed and exchanged by the constructor, which is collective.

    Attributes: ``bytes`` and ``addresses``, the start of each rank's heap as this rank addresses it.
    Raises on every rank alike: BackendUnavailable where a pair of GPUs cannot reach each other (it names them all),
    OutOfSymmetricMemory, RankMismatchError.
    """

    def __init__(self, bootstrap: Bootstrap, device: int, heap_bytes: int, timeout: float) -> None:
        self._runtime = import_cupy().cuda.runtime
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._rank = bootstrap.rank
        self.bytes = heap_bytes
        self.addresses: list[int] = []
        self._own = 0
        self._opened: list[int] = []
        try:
            self._open(device)
        except BaseException:
            self._release()
            raise

    def _open(self, device: int) -> None:
        mine = agree(self._bootstrap, lambda: (identify(device), self.bytes), self._timeout)
        sizes = [size for _, size in mine]
        if len(set(sizes)) > 1:
            listing = ", ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes))
            raise RankMismatchError(f"heap_bytes must be the same on all ranks; got {listing}")
        identities = [identity for identity, _ in mine]
        problems = agree(self._bootstrap, lambda: peer_problems(self._rank, identities), self._timeout)
        if any(problems):
            listing = "\n  ".join(text for texts in problems for text in texts)
            raise BackendUnavailable(
                f"the cuda backend needs GPUs of one host that reach each other over NVLink or PCIe P2P:\n  {listing}\n"
                "`nvidia-smi topo -p2p r` shows the pairs that work; choose GPUs by CUDA_VISIBLE_DEVICES."
            )
        handles = agree(self._bootstrap, self._allocate, self._timeout)
        agree(self._bootstrap, lambda: self._open_peers(handles), self._timeout)

    def _allocate(self) -> bytes:
        size = -(-self.bytes // _GRANULE) * _GRANULE
        try:
            self._own = int(self._runtime.malloc(size))
        except self._runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise allocation_error(self._rank, size, self._runtime.memGetInfo()[0], str(error)) from error
        self._runtime.memset(self._own, 0, size)
        self._runtime.deviceSynchronize()
        if self._bootstrap.world_size == 1:
            return b""
        return bytes(self._runtime.ipcGetMemHandle(self._own))

    def _open_peers(self, handles: list[bytes]) -> None:
        for peer, handle in enumerate(handles):
            if peer == self._rank:
                self.addresses.append(self._own)
                continue
            try:
                address = int(self._runtime.ipcOpenMemHandle(handle))
            except self._runtime.CUDARuntimeError as error:
                raise BackendUnavailable(
                    f"rank {self._rank} cannot open rank {peer}'s memory through CUDA IPC: {error}. In a container, "
                    "start it with --ipc=host; under WSL, CUDA IPC does not exist."
                ) from error
            self._opened.append(address)
            self.addresses.append(address)

    def close(self, *, orderly: bool) -> None:
        """Give the memory back. ``orderly``: all ranks call this, and nobody frees what another still has open."""
        if not self._own:
            return
        met = orderly and self._meet()  # nobody's kernels use my memory any more
        self._close_peers()
        if met:
            self._meet()  # everybody has closed my memory
        self._release()

    def _meet(self) -> bool:
        """Whether all ranks came; a rank that failed must not keep the others from closing."""
        try:
            self._bootstrap.all_gather(("close()", None), self._timeout)  # a rank elsewhere sees what we are in
        except EpError:
            return False
        return True

    def _close_peers(self) -> None:
        for address in self._opened:
            with contextlib.suppress(self._runtime.CUDARuntimeError):  # a lost context has closed it already
                self._runtime.ipcCloseMemHandle(address)
        self._opened = []

    def _release(self) -> None:
        self._close_peers()
        if self._own:
            with contextlib.suppress(self._runtime.CUDARuntimeError):
                self._runtime.free(self._own)
            self._own = 0


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

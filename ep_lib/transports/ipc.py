"""A symmetric heap on GPUs of one host: one cudaMalloc region per rank, which every other rank opens through CUDA IPC.

This module has only the memory, for transports that map it so.
"""

from __future__ import annotations

import contextlib

from ep_lib.errors import BackendUnavailable
from ep_lib.transports.base import GpuHeap, GpuSetup, agree, closing_barrier


class IpcMemory(GpuHeap):
    """Allocated, zeroed and exchanged by the constructor. Raises OutOfSymmetricMemory and BackendUnavailable on every
    rank alike.
    """

    def __init__(self, setup: GpuSetup) -> None:
        super().__init__(setup)
        self._opened: list[int] = []
        try:
            handles = agree(setup.bootstrap, self._share, setup.timeout)
            agree(setup.bootstrap, lambda: self._open_peers(handles), setup.timeout)
        except BaseException:
            self._release()
            raise

    def _share(self) -> bytes:
        self._allocate()
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

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Free the memory. ``orderly``: all ranks call this, and none frees memory that another still has open."""
        if not self._own:
            return
        limit = self._timeout if timeout is None else timeout
        all_here = orderly and closing_barrier(self._bootstrap, limit)  # no kernel uses my memory any more
        self._close_peers()
        if all_here:
            closing_barrier(self._bootstrap, limit)  # all have closed my memory
        self._release()

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

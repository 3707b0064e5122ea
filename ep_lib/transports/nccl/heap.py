"""The symmetric heap in a window of NCCL's symmetric memory, which NCCL maps into the GPUs of its LSA team."""

from __future__ import annotations

from ep_lib.bootstrap.base import rank_list, within
from ep_lib.errors import BackendUnavailable
from ep_lib.transports.base import GpuHeap, GpuSetup, agree
from ep_lib.transports.nccl.library import NcclLibrary, find


class NcclHeap(GpuHeap):
    """Started, allocated and zeroed by the constructor. Fits :class:`ep_lib.transports.base.Transport`. Raises
    BackendUnavailable on every rank alike.
    """

    name = "nccl"

    def __init__(self, setup: GpuSetup) -> None:
        super().__init__(setup)
        self._window = 0
        agree(self._bootstrap, self._load, self._timeout)
        ids = agree(
            self._bootstrap, lambda: self._library.unique_id() if self._bootstrap.rank == 0 else b"", self._timeout
        )
        try:
            agree(self._bootstrap, lambda: self._start(ids[0]), self._timeout)
            agree(self._bootstrap, self._allocate, self._timeout)
            agree(self._bootstrap, self._register, self._timeout)
        except BaseException:
            self._library.abort()
            raise

    # Implementation

    def _leave(self, timeout: float) -> None:
        self._library.forget(self._window)
        self._library.free(self._own)
        self._window = 0
        self._library.stop()

    def _load(self) -> None:
        self._library = NcclLibrary(find())

    def _start(self, unique_id: bytes) -> None:
        def join() -> bool:
            self._runtime.setDevice(self._device)  # this thread's
            self._library.start(self._bootstrap.rank, self._bootstrap.world_size, unique_id)
            return True

        if not within(self._timeout, join):
            raise BackendUnavailable(
                f"{self._library.name} did not start within {self._timeout:g} s: not all ranks reached each other. "
                "NCCL_DEBUG=INFO makes NCCL say why, NCCL_SOCKET_IFNAME names the network that it meets on"
            )

    def _allocate(self) -> None:
        self._own = self._library.allocate(self._size)
        self._clear()

    def _register(self) -> None:
        self._window = self._library.register(self._own, self._size)
        if not self._window:
            raise BackendUnavailable(
                f"{self._library.name} has no symmetric memory here: it needs CUDA's virtual memory management "
                "(NCCL_CUMEM_ENABLE must not be 0), and GPUs that reach each other over NVLink or PCIe P2P"
            )
        ranks = range(self._bootstrap.world_size)
        self.addresses = [self._library.peer_address(self._window, rank) for rank in ranks]
        if out_of_reach := [rank for rank in ranks if not self.addresses[rank]]:
            raise BackendUnavailable(
                f"NCCL joins rank {self._bootstrap.rank} with {rank_list(out_of_reach)} by a network only, and "
                "transport='nccl' has nothing but loads and stores (its LSA team): take transport='nvshmem'"
            )

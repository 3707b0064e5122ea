"""The symmetric heap as memory registered with NIXL, so that ``ep::net_*`` reach peers through its device API.

Every rank registers its heap with an agent, agents exchange metadata over our bootstrap, and kernels get two memory
views: of their own heap, and of all others'. Plain loads and stores work too, if UCX has mapped the peer's heap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_lib.errors import BackendUnavailable
from ep_lib.jit.source import KernelSource
from ep_lib.transports.base import GpuHeap, GpuSetup, Module, agree, closing_barrier
from ep_lib.transports.nixl import build, views
from ep_lib.transports.nixl.agent import NixlAgent

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage


class NixlHeap(GpuHeap):
    """Allocated, zeroed, registered and connected by the constructor. Raises on every rank alike: BackendUnavailable,
    OutOfSymmetricMemory, PeerTimeout.
    """

    name = "nixl"

    def __init__(self, setup: GpuSetup) -> None:
        super().__init__(setup)
        bootstrap, timeout = setup.bootstrap, setup.timeout
        self._state = bytes(16)
        agree(bootstrap, lambda: self._load(setup.unreachable), timeout)
        exchanged = agree(bootstrap, self._register, timeout)
        others = [rank for rank in range(bootstrap.world_size) if rank != bootstrap.rank]
        metadata = {rank: exchanged[rank][0] for rank in others}
        regions = [(rank, exchanged[rank][1], self._size, exchanged[rank][2]) for rank in others]
        with self._agent.kept_going():
            agree(bootstrap, lambda: self._agent.connect(metadata, timeout), timeout)
            agree(bootstrap, lambda: self._make_views(regions), timeout)

    def compile(self, kernel: KernelSource, arch: str) -> NvrtcImage:
        return build.compile_cubin(kernel, arch)

    def register_module(self, module: Module, image: NvrtcImage) -> None:
        address = module.symbol(build.STATE_SYMBOL)
        if address is not None:  # a kernel without network operations has no such symbol
            views.copy(self._runtime, address, self._state, views.HOST_TO_DEVICE)

    # Implementation

    def _leave(self, timeout: float) -> None:
        self._agent.close()
        if closing_barrier(self._bootstrap, timeout):  # all have released my memory
            self._runtime.free(self._own)

    def _load(self, unreachable: list[str]) -> None:
        cuda = int(self._runtime.runtimeGetVersion()) // 1000
        found = build.find(cuda)
        missing = build.unusable_reason(cuda)
        if missing:
            raise BackendUnavailable(missing)
        if unreachable and not found.has_nics:
            pairs = "\n  ".join(unreachable)
            raise BackendUnavailable(
                f"transport='nixl' with {found} reaches GPUs over NVLink or PCIe P2P only, because these headers have "
                f"no device code for NICs (uct/ib/mlx5/gdaki/):\n  {pairs}\nTake transport='nvshmem', which can go "
                "through a NIC, or name a UCX built with GPU-initiated networking in UCX_HOME."
            )
        self._agent = NixlAgent(found, self._bootstrap.rank)

    def _register(self) -> tuple[bytes, int, int]:
        self._allocate()
        return self._agent.register(self._own, self._size, self._device), self._own, self._device

    def _make_views(self, regions: list[tuple[int, int, int, int]]) -> None:
        rank = self._bootstrap.rank
        self.addresses = [self._own] * self._bootstrap.world_size
        if not regions:
            return
        mine = self._agent.view_of_mine(self._own, self._size, self._device)
        others = self._agent.view_of_others(regions)
        views.require_version(self._runtime, self._agent.installation, others, len(regions))
        self._state = mine.to_bytes(8, "little") + others.to_bytes(8, "little")
        mapped = views.mapped_addresses(self._runtime, self._cuda.driver, self._device, others, len(regions))
        self.addresses = [*mapped[:rank], self._own, *mapped[rank:]]

"""The symmetric heap as memory that NIXL knows: what makes ``ep::net_*`` reach peers through its device API.

Every rank registers its heap with an agent, agents exchange metadata over our bootstrap, and kernels get two memory
views: of their own heap, and of all others'. Plain loads and stores work too, where UCX has mapped the peer's heap.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ep_lib.cuda.devices import import_cupy
from ep_lib.cuda.errors import OUT_OF_MEMORY, allocation_error
from ep_lib.errors import BackendUnavailable
from ep_lib.jit.source import KernelSource
from ep_lib.transports.base import GRANULE, GpuSetup, Module, agree, closing_barrier
from ep_lib.transports.nixl import build
from ep_lib.transports.nixl.agent import NixlAgent

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_MAJOR, _MINOR = 75, 76  # cudaDeviceAttr: compute capability
_HEAD_BYTES = 8  # of a memory view on the GPU: version (uint16), lanes (uint16), entries (uint32)


class NixlHeap:
    """Allocated, zeroed, registered and connected by the constructor, which is collective.

    Attributes: ``name``, ``bytes`` and ``addresses`` (of each rank's heap as this rank addresses it, or 0).
    Raises on every rank alike: BackendUnavailable, OutOfSymmetricMemory, PeerTimeout.
    """

    name = "nixl"

    def __init__(self, setup: GpuSetup) -> None:
        bootstrap, timeout, heap_bytes = setup.bootstrap, setup.timeout, setup.heap_bytes
        cupy = import_cupy()
        self._runtime, self._driver = cupy.cuda.runtime, cupy.cuda.driver
        self._bootstrap, self._timeout, self._device = bootstrap, timeout, setup.device
        self._size = -(-heap_bytes // GRANULE) * GRANULE
        self._own = 0
        self._state = bytes(16)
        self.bytes = heap_bytes
        self.addresses: list[int] = []
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
            self._copy(address, self._state, _HOST_TO_DEVICE)

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Leave NIXL. ``orderly``: all ranks call this; otherwise memory stays until the process ends, because others
        may still have it mapped."""
        limit = self._timeout if timeout is None else timeout
        if not self._own or not (orderly and closing_barrier(self._bootstrap, limit)):
            return
        self._agent.close()
        if closing_barrier(self._bootstrap, limit):  # all have released my memory
            self._runtime.free(self._own)
        self._own = 0

    # How it is done

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
        try:
            self._own = int(self._runtime.malloc(self._size))
        except self._runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            free = self._runtime.memGetInfo()[0]
            raise allocation_error(self._bootstrap.rank, self._size, free, str(error)) from error
        self._runtime.memset(self._own, 0, self._size)
        self._runtime.deviceSynchronize()
        return self._agent.register(self._own, self._size, self._device), self._own, self._device

    def _make_views(self, regions: list[tuple[int, int, int, int]]) -> None:
        rank = self._bootstrap.rank
        self.addresses = [self._own] * self._bootstrap.world_size
        if not regions:
            return
        mine = self._agent.view_of_mine(self._own, self._size, self._device)
        others = self._agent.view_of_others(regions)
        self._check_version(others, len(regions))
        self._state = mine.to_bytes(8, "little") + others.to_bytes(8, "little")
        mapped = self._mapped_addresses(others, len(regions))
        self.addresses = [*mapped[:rank], self._own, *mapped[rank:]]

    def _check_version(self, view: int, entries: int) -> None:
        """Kernels read what the host's UCX wrote: both must mean the same struct."""
        head = self._copy(view, bytes(_HEAD_BYTES), _DEVICE_TO_HOST)
        version, length = int.from_bytes(head[:2], "little"), int.from_bytes(head[4:], "little")
        found = self._agent.installation
        if version != found.list_version or length != entries:
            raise BackendUnavailable(
                f"found memory views of version {version} with {length} entries from NIXL {found.version}, but UCX "
                f"{found.ucx_version}'s device headers need version {found.list_version} with {entries}: install a "
                f"libucx that fits: {build.pip_line(found.cuda_major)}"
            )

    def _mapped_addresses(self, view: int, entries: int) -> list[int]:
        attribute = self._runtime.deviceGetAttribute
        arch = f"sm_{attribute(_MAJOR, self._device)}{attribute(_MINOR, self._device)}"
        module = self._driver.moduleLoadData(build.mapped_addresses_cubin(arch))
        function = self._driver.moduleGetFunction(module, "mapped_addresses")
        out = int(self._runtime.malloc(8 * entries))
        values = (ctypes.c_uint64(view), ctypes.c_uint64(out), ctypes.c_int(entries))
        pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
        self._driver.launchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(pointers), 0)
        self._runtime.deviceSynchronize()
        found = self._copy(out, bytes(8 * entries), _DEVICE_TO_HOST)
        self._runtime.free(out)
        self._driver.moduleUnload(module)
        return [int.from_bytes(found[8 * i : 8 * i + 8], "little") for i in range(entries)]

    def _copy(self, address: int, data: bytes, direction: int) -> bytes:
        """Between the GPU's memory at ``address`` and a buffer that begins as ``data``; what the buffer is then."""
        buffer: Any = ctypes.create_string_buffer(data, len(data))
        host = ctypes.addressof(buffer)
        to, source = (address, host) if direction == _HOST_TO_DEVICE else (host, address)
        self._runtime.memcpy(to, source, len(data), direction)
        return bytes(buffer.raw)

"""The symmetric heap in NVSHMEM's memory, so that ``ep::net_*`` reach peers through NVSHMEM.

Plain loads and stores work too for peers that ``nvshmem_ptr`` maps; the address of other peers' heaps is 0.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ep_lib.cuda.errors import allocation_error
from ep_lib.errors import BackendUnavailable
from ep_lib.jit.elf import Elf
from ep_lib.jit.source import KernelSource
from ep_lib.transports.base import GpuHeap, GpuSetup, Module, agree
from ep_lib.transports.nvshmem import build, nics
from ep_lib.transports.nvshmem.library import NvshmemLibrary

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage

_SLACK = 64 << 20  # bytes of NVSHMEM's own in its symmetric memory


class NvshmemHeap(GpuHeap):
    """Started, allocated and zeroed by the constructor.

    The setup's ``variant`` is the build route of kernels (:mod:`ep_lib.transports.nvshmem.build`), empty for the one
    with the fewest requirements, and ``route`` the one chosen.
    An NVSHMEM that the program has started, on the same ranks, is used and not stopped; its NVSHMEM_SYMMETRIC_SIZE must
    have room for the heap. Raises on every rank alike: BackendUnavailable, OutOfSymmetricMemory.
    """

    name = "nvshmem"

    def __init__(self, setup: GpuSetup) -> None:
        super().__init__(setup)
        bootstrap, timeout, unreachable = setup.bootstrap, setup.timeout, setup.unreachable
        self._modules: list[int] = []
        adopted = agree(bootstrap, lambda: self._load(setup.variant or None), timeout)
        if len(set(adopted)) == 2:
            raise BackendUnavailable(
                f"the program has started NVSHMEM already on rank {adopted.index(True)}, and not on rank "
                f"{adopted.index(False)}: start it on all ranks, or leave it to ep_lib"
            )
        agree(bootstrap, lambda: _prepare_environment(self.bytes, unreachable), timeout)
        rank_0_says = agree(bootstrap, lambda: self._library.unique_id() if bootstrap.rank == 0 else b"", timeout)
        agree(bootstrap, lambda: self._start(rank_0_says[0], unreachable), timeout)
        agree(bootstrap, self._allocate, timeout)

    def compile(self, kernel: KernelSource, arch: str) -> NvrtcImage:
        return build.compile_cubin(kernel, arch, self.route)

    def register_module(self, module: Module, image: NvrtcImage) -> None:
        if any(symbol.name.endswith(build.STATE_SYMBOL) for symbol in Elf(image.cubin).symbols):
            self._library.register_module(module.handle)
            self._modules.append(module.handle)

    # Implementation

    def _leave(self, timeout: float) -> None:
        for module in self._modules:
            self._library.forget(module)
        self._library.free(self._own)
        self._library.stop()

    def _load(self, route: str | None) -> bool:
        """Returns whether the program has started NVSHMEM."""
        self.route = build.choose_route(route)
        found = build.find()
        cuda = self._runtime.runtimeGetVersion() // 1000
        if found.cuda_major is not None and found.cuda_major != cuda:
            raise BackendUnavailable(
                f"found NVSHMEM {build.version_text(found.version)} for CUDA {found.cuda_major}, but CuPy is for "
                f"CUDA {cuda} and needs the same: pip install nvidia-nvshmem-cu{cuda}, and uninstall the other"
            )
        missing = build.unusable_reason(self.route)
        if missing:
            raise BackendUnavailable(f"kernels cannot be built by the route {self.route!r}: {missing}")
        self._library = NvshmemLibrary(found)
        return self._library.is_adopted

    def _start(self, unique_id: bytes, unreachable: list[str]) -> None:
        try:
            self._library.start(self._bootstrap.rank, self._bootstrap.world_size, unique_id)
        except BackendUnavailable as error:
            if not unreachable:
                raise
            pairs = "\n  ".join(unreachable)
            raise BackendUnavailable(
                f"{error}. These GPUs need a NIC between them:\n  {pairs}\nNVSHMEM_REMOTE_TRANSPORT names what drives "
                "it: ibrc (InfiniBand, RoCE), or libfabric with NVSHMEM_LIBFABRIC_PROVIDER=efa; `ep-lib doctor` "
                "explains them"
            ) from error

    def _allocate(self) -> None:
        self._own = self._library.allocate(self.bytes)
        if not self._own:
            free = self._runtime.memGetInfo()[0]
            raise allocation_error(self._rank, self.bytes, free, "nvshmem_malloc returned no memory")
        self._runtime.memset(self._own, 0, self.bytes)
        self._runtime.deviceSynchronize()
        pes = range(self._bootstrap.world_size)
        self.addresses = [self._own if pe == self._rank else self._library.peer_address(self._own, pe) for pe in pes]


def _prepare_environment(heap_bytes: int, unreachable: list[str]) -> None:
    """Sets the variables that NVSHMEM reads at its start, unless the user has set them."""
    environment = os.environ
    environment.setdefault("NVSHMEM_SYMMETRIC_SIZE", str(heap_bytes + _SLACK))
    # Multicast over NVSwitch: we do not use it, and on a shared host it can disable other users' GPUs.
    environment.setdefault("NVSHMEM_DISABLE_NVLS", "1")
    environment.setdefault("NVSHMEM_DISABLE_NCCL", "1")  # for its collectives, which we do not call
    if not unreachable:
        environment.setdefault("NVSHMEM_REMOTE_TRANSPORT", "none")  # no NIC is needed
    elif not environment.get("NVSHMEM_REMOTE_TRANSPORT"):
        _choose_remote_transport(unreachable)


def _choose_remote_transport(unreachable: list[str]) -> None:
    """Sets the variables for this host's NICs. Raises BackendUnavailable if there is no NIC, or none for IBGDA."""
    found = nics.rdma_devices()
    pairs = "\n  ".join(unreachable)
    if not found:
        raise BackendUnavailable(
            "these GPUs need a NIC between them, and this host shows no RDMA device in /sys/class/infiniband:\n  "
            f"{pairs}\nIn a container, hand the devices in (--device /dev/infiniband); or choose GPUs that reach each "
            "other"
        )
    listing = ", ".join(map(str, found))
    if build.uses_ibgda() and not nics.can_be_driven_by_gpus(found):
        raise BackendUnavailable(
            f"NVSHMEM_IB_ENABLE_IBGDA is set, and IBGDA drives Mellanox NICs (mlx5_core) only; found {listing}: "
            "unset it"
        )
    for name, value in nics.nvshmem_settings(found).items():
        os.environ.setdefault(name, value)

"""The host's half of ``transport="proxy"`` on GPUs: rings that kernels and the host share, and native proxies that use
CUDA's copy engine.

All heaps are mapped as for ``p2p``, so ``ep::peer_ptr`` and plain stores work; ``ep::net_*`` go through the proxy.
"""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_lib.cuda.devices import import_cupy
from ep_lib.jit import device_state, nvrtc, pieces
from ep_lib.jit.source import KernelSource
from ep_lib.transports.base import GpuSetup, agree
from ep_lib.transports.ipc import IpcMemory
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import PRODUCER, RING, RINGS, Rings

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage

QUEUE_PAIRS = 4  # rings of a rank, each with a stream
SLOTS = 256
_CLOSING_SECONDS = 5.0
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # cudaDeviceAttr
_HOST_MAPPED = 2
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class GpuRings(Rings):
    """Rings for kernels of the current GPU: slots and credits in pinned memory, the kernels' counts on the GPU.

    ``on_gpu``: where kernels find the ProxyRing structs; ``told``: the ProxyRings struct. :meth:`free` gives all back.
    ``sealed``: kernels push by <ep/sealed_ring.cuh>, and not by <ep/proxy_ring.cuh>.
    """

    def __init__(self, count: int, slots: int, *, sealed: bool = True) -> None:
        self._runtime = import_cupy().cuda.runtime
        nbytes = self.shared_bytes(count, slots)
        self._pinned = int(self._runtime.hostAlloc(nbytes, _HOST_MAPPED))  # one address for host and GPU
        ctypes.memset(self._pinned, 0, nbytes)
        sizes = count * PRODUCER.size, count * RING.size, RINGS.size
        producers = self._gpu = int(self._runtime.malloc(sum(sizes)))
        super().__init__(count, slots, (ctypes.c_char * nbytes).from_address(self._pinned), producers, sealed=sealed)
        self.on_gpu, self.told = producers + sizes[0], producers + sizes[0] + sizes[1]
        self._runtime.memset(producers, 0, sizes[0])
        self._runtime.memcpy(self.on_gpu, self.address, sizes[1], _HOST_TO_DEVICE)
        # Every ring is a stream and keeps its order.
        told = RINGS.pack(rings=self.on_gpu, count=count, num_queue_pairs=count, keeps_order=1, reserved=0)
        self.write(self.told, told)

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes to the GPU."""
        kept = ctypes.create_string_buffer(data)
        self._runtime.memcpy(address, ctypes.addressof(kept), len(data), _HOST_TO_DEVICE)

    def free(self) -> None:
        """Frees the rings; call when neither kernels nor proxies use them any more."""
        self._runtime.free(self._gpu)
        self._runtime.freeHost(self._pinned)

    def _producer(self, number: int) -> Any:
        copy = ctypes.create_string_buffer(PRODUCER.size)
        source = self._gpu + number * PRODUCER.size
        self._runtime.memcpy(ctypes.addressof(copy), source, PRODUCER.size, _DEVICE_TO_HOST)
        return copy


def copy_engine(memory: IpcMemory, rank: int, device: int, queues: int) -> engine.CopyEngine:
    """The executor for mapped heaps that are still all zero. Raises BackendUnavailable."""
    attribute = import_cupy().cuda.runtime.deviceGetAttribute
    major, minor = (int(attribute(which, device)) for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
    return engine.CopyEngine(queues, memory.addresses, memory.bytes, rank, device=device, arch=f"sm_{major}{minor}")


class GpuProxyHeap(IpcMemory):
    """Fits :class:`ep_lib.transports.base.Transport`; made with a GpuSetup, collectively."""

    name = "proxy"
    serves_kernels = True

    def __init__(self, setup: GpuSetup) -> None:
        self._rings: GpuRings | None = None
        self._proxy: engine.Proxy | None = None
        super().__init__(setup)
        try:
            agree(setup.bootstrap, lambda: self._start(setup.device), setup.timeout)
        except BaseException:
            self._finish()
            self._release()
            raise

    def compile(self, kernel: KernelSource, arch: str) -> NvrtcImage:
        return nvrtc.compile_cubin(kernel, arch, Path(__file__).parent)

    def failure(self) -> str:
        return "" if self._proxy is None else engine.gave_up(self._rank, self._proxy)

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Ends the proxies after all pushed commands, then frees the memory."""
        self._finish()
        super().close(orderly=orderly, timeout=timeout)

    def _start(self, device: int) -> None:
        executor = copy_engine(self, self._rank, device, QUEUE_PAIRS)
        own = any((root / "ep" / "proxy_ring.cuh").is_file() for root in pieces.active())  # a learner's, without seals
        rings = self._rings = GpuRings(QUEUE_PAIRS, SLOTS, sealed=not own)
        self._proxy = engine.Proxy(rings, executor)
        head = self.addresses[self._rank] + device_state.HEADER.offsets["proxy"]
        rings.write(head, rings.told.to_bytes(8, "little"))

    def _finish(self) -> None:
        if failure := self.failure():  # perhaps no wait has seen it
            warnings.warn(failure, RuntimeWarning, stacklevel=2)
        proxy, rings, self._proxy, self._rings = self._proxy, self._rings, None, None
        if proxy is not None:
            proxy.finish(_CLOSING_SECONDS)
        if rings is not None:
            rings.free()

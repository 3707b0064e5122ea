"""The host's half of ``transport="proxy"`` on the emulator: rings in memory, and the proxies that serve them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ep_lib.jit import device_state
from ep_lib.jit.gxx import EmulatorImage, build_emulator_kernel
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.transports.base import EmulatorSetup, Module
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import RINGS, Rings

MAX_RINGS = 8
SLOTS = 64
_CLOSING_SECONDS = 5.0
_SPIN_SECONDS = 50e-6  # ranks that are processes of one host usually have to share its cores


class ProxyHeap:
    """``ep::net_*`` are commands to the proxies of this rank. Fits :class:`ep_lib.transports.base.Transport`.

    If all ranks are in this process, the proxies are threads of a scheduled kernel, and post to the rank's simulated
    NIC. If each rank is a process, they are native threads, which copy between the shared heaps.
    """

    name = "proxy"

    def __init__(self, setup: EmulatorSetup) -> None:
        machine, rank = setup.machine, setup.rank
        self.bytes = machine.heap_bytes
        self.addresses = [machine.heap_address(rank) for rank in range(machine.ranks)]
        self.rings = Rings(min(MAX_RINGS, machine.fabric.queue_pairs), SLOTS)
        for address, nbytes in self.rings.spans():
            machine.register(rank, address, address + nbytes, True)
        fabric = machine.fabric
        self._told = np.zeros(1, RINGS.dtype)
        self._told["rings"], self._told["count"] = self.rings.address, self.rings.count
        self._told["num_queue_pairs"], self._told["keeps_order"] = fabric.queue_pairs, fabric.kind == "rc"
        machine.register(rank, self._told.ctypes.data, self._told.ctypes.data + self._told.nbytes, False)
        machine.keep(self.rings, self._told)
        self._rank = rank
        begin = device_state.HEADER.offsets["proxy"]
        machine.heap_view(rank)[begin : begin + 8].view(np.uint64)[0] = self._told.ctypes.data
        self._proxy: engine.Proxy | None = None
        if machine.has_other_processes:
            executor = engine.Memory(self.rings.count, self.addresses, machine.heap_span, rank)
            fault_word = machine.heap_address(rank)  # a heap begins with the code of the rank's FaultRecord
            self._proxy = engine.Proxy(self.rings, executor, spin=_SPIN_SECONDS, fault_word=fault_word)
            return
        kernel = library_kernel("transports/proxy/emulated/proxy.cu", "ep_proxy")
        image, argument = build_emulator_kernel(kernel), self.rings.address.to_bytes(8, "little")
        grid, block = (2 * self.rings.count, 1, 1), (1, 1, 1)
        machine.launch(rank, kernel.name, machine.entry(image, rank), grid, block, [argument], [], 0, is_service=True)

    def compile(self, kernel: Kernel, arch: str) -> EmulatorImage:
        return build_emulator_kernel(kernel, Path(__file__).parent)

    def register_module(self, module: Module, image: EmulatorImage) -> None:
        """Nothing to do: the head of the heap has the rings' address."""

    def failure(self) -> str:
        return "" if self._proxy is None else engine.gave_up(self._rank, self._proxy)

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Ends native proxies after all pushed commands; the others end with the machine."""
        if self._proxy is not None:
            self._proxy.finish(_CLOSING_SECONDS)

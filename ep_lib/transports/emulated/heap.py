"""The symmetric heap of an emulated rank: the machine's own memory, and its simulated NICs behind ``ep::net_*``."""

from __future__ import annotations

from pathlib import Path

from ep_lib.jit.gxx import EmulatorImage, build_emulator_kernel
from ep_lib.jit.kernel import Kernel
from ep_lib.transports.base import EmulatorSetup, Module


class EmulatedHeap:
    """``addresses`` has every rank's heap; the machine's fabric decides which of them loads and stores reach."""

    name = "emulated"

    def __init__(self, setup: EmulatorSetup) -> None:
        machine = setup.machine
        self.bytes = machine.heap_bytes
        self.addresses = [machine.heap_address(rank) for rank in range(machine.ranks)]

    def compile(self, kernel: Kernel, arch: str) -> EmulatorImage:
        return kernel.compile()

    def register_module(self, module: Module, image: EmulatorImage) -> None:
        """Nothing to do: kernels call the runtime."""

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        """Nothing to do: the heaps live as long as the machine."""


class ByPairHeap(EmulatedHeap):
    """``transport="by_pair"``: ``ep::net_*`` are stores to ranks of the same node, the simulated NIC to others."""

    name = "by_pair"

    def compile(self, kernel: Kernel, arch: str) -> EmulatorImage:
        return build_emulator_kernel(kernel, Path(__file__).with_name("by_pair"))

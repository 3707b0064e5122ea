"""The host's half of the toy transport: it owns the staging area and tells every module where it is."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from ep_lib.jit.gxx import EmulatorImage, build_emulator_kernel
from ep_lib.jit.kernel import Kernel
from ep_lib.transports.base import EmulatorSetup, Module

AREA_BYTES = 16 * (64 + 1024) + 64  # ep::transport::toy::Area

staged: dict[int, int] = {}  # by rank: bytes that went through the area of the last world


class ToyHeap:
    """Fits ep_lib.transports.base.Transport."""

    name = "toy"

    def __init__(self, setup: EmulatorSetup) -> None:
        self._machine, self._rank = setup.machine, setup.rank
        self.bytes = setup.machine.heap_bytes
        self.addresses = [setup.machine.heap_address(rank) for rank in range(setup.machine.ranks)]
        self._area = np.zeros(AREA_BYTES + 64, np.uint8)
        self._address = -(-self._area.ctypes.data // 64) * 64
        self._machine.register(self._rank, self._address, self._address + AREA_BYTES, True)

    def compile(self, kernel: Kernel, arch: str) -> EmulatorImage:
        return build_emulator_kernel(kernel, Path(__file__).parent)

    def register_module(self, module: Module, image: EmulatorImage) -> None:
        variable = module.symbol("toy_area")
        if variable is not None:  # a kernel without network operations has none
            ctypes.c_uint64.from_address(variable).value = self._address

    def close(self, *, orderly: bool, timeout: float | None = None) -> None:
        staged[self._rank] = ctypes.c_uint64.from_address(self._address).value
        self._machine.stale.append((self._rank, self._address, self._address + AREA_BYTES))

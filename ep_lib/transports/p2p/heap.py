"""Heaps that all ranks have mapped, for kernels whose ``ep::net_*`` are stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_lib.jit import nvrtc
from ep_lib.jit.source import KernelSource
from ep_lib.transports.base import Module
from ep_lib.transports.ipc import IpcMemory

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage


class IpcHeap(IpcMemory):
    """Fits :class:`ep_lib.transports.base.Transport`; made with a GpuSetup, collectively."""

    name = "p2p"

    def compile(self, kernel: KernelSource, arch: str) -> NvrtcImage:
        return nvrtc.compile_cubin(kernel, arch)

    def register_module(self, module: Module, image: NvrtcImage) -> None:
        """Nothing to do: kernels find peers by DeviceState alone."""

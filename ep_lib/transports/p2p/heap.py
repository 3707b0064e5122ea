"""Heaps that all ranks have mapped, for kernels whose ``ep::net_*`` are stores."""

from __future__ import annotations

from ep_lib.transports.ipc import IpcMemory


class IpcHeap(IpcMemory):
    """Fits :class:`ep_lib.transports.base.Transport`; made with a GpuSetup, collectively."""

    name = "p2p"

"""Stand-ins for CuPy, for GPUs and for another rank, for tests of the transports on a machine without GPUs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ep_lib.bootstrap import SingleBootstrap
from ep_lib.cuda.devices import DeviceIdentity
from ep_lib.transports import base, choose
from ep_lib.transports.nvshmem import build as nvshmem
from ep_lib.transports.nvshmem import heap as nvshmem_heap
from ep_lib.transports.p2p import heap as p2p_heap

GLOBAL = re.compile(
    r"(template <typename T>\s+)?(?:extern \"C\" )?__global__ void\s+(?:__launch_bounds__\(\d+\)\s+)?(\w+)\("
)


class FakeCuda:
    """What the heaps of NVSHMEM and NCCL ask of CuPy."""

    def __init__(self) -> None:
        self.zeroed: list[int] = []
        self.cuda = SimpleNamespace(runtime=self)

    CUDARuntimeError = ZeroDivisionError

    def runtimeGetVersion(self) -> int:
        return 13000

    def memset(self, address: int, value: int, size: int) -> None:
        self.zeroed.append(size)

    def deviceSynchronize(self) -> None: ...

    def setDevice(self, device: int) -> None: ...

    def memGetInfo(self) -> tuple[int, int]:
        return 1 << 20, 1 << 21


class Two(SingleBootstrap):
    """Another rank that does the same, but for what a test says."""

    world_size = 2

    def __init__(self, *others: Any) -> None:
        self.others = dict(enumerate(others))
        self.calls = -1

    def all_gather(self, obj: object, timeout: float | None = None) -> list[Any]:
        self.calls += 1
        return [obj, self.others.get(self.calls, obj)]


def _opened_nvshmem(setup: base.GpuSetup) -> tuple[Any, ...]:
    return ("nvshmem", setup.heap_bytes, setup.timeout, setup.variant, setup.unreachable)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    state: dict[str, Any] = {"problems": [], "usable": None}
    gpu = DeviceIdentity("a", "host", 0, "0", "GPU")
    monkeypatch.setattr(choose, "identify", lambda device: gpu)
    monkeypatch.setattr(choose, "peer_problems", lambda rank, identities: state["problems"])
    monkeypatch.setattr(nvshmem, "unusable_reason", lambda route: state["usable"])
    monkeypatch.setattr(p2p_heap, "IpcHeap", lambda setup: ("p2p", setup.heap_bytes, setup.timeout))
    monkeypatch.setattr(nvshmem_heap, "NvshmemHeap", _opened_nvshmem)
    monkeypatch.setattr(base, "import_cupy", FakeCuda)
    return state

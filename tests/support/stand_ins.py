"""Stand-ins for CuPy, for GPUs and for another rank, for tests of the transports on a machine without GPUs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ep_lib.bootstrap import SingleBootstrap
from ep_lib.cuda.devices import DeviceIdentity
from ep_lib.transports import base, registry
from ep_lib.transports.nvshmem import build as nvshmem
from ep_lib.transports.nvshmem import heap as nvshmem_heap

GLOBAL = re.compile(
    r"(template <typename T>\s+)?(?:extern \"C\" )?__global__ void\s+(?:__launch_bounds__\(\d+\)\s+)?(\w+)\("
)


class FakeCuda:
    """What NvshmemHeap asks of CuPy."""

    def __init__(self) -> None:
        self.zeroed: list[int] = []
        self.cuda = SimpleNamespace(runtime=self)

    CUDARuntimeError = ZeroDivisionError

    def runtimeGetVersion(self) -> int:
        return 13000

    def memset(self, address: int, value: int, size: int) -> None:
        self.zeroed.append(size)

    def deviceSynchronize(self) -> None: ...

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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    state: dict[str, Any] = {"problems": [], "usable": None}
    gpu = DeviceIdentity("a", "host", 0, "0", "GPU")
    monkeypatch.setattr(registry, "identify", lambda device: gpu)
    monkeypatch.setattr(registry, "peer_problems", lambda rank, identities: state["problems"])
    monkeypatch.setattr(nvshmem, "unusable_reason", lambda route: state["usable"])
    monkeypatch.setattr(registry, "IpcHeap", lambda *args: ("p2p", *args[1:]))
    monkeypatch.setattr(nvshmem_heap, "NvshmemHeap", lambda *args: ("nvshmem", *args[1:]))
    monkeypatch.setattr(base, "import_cupy", FakeCuda)
    return state

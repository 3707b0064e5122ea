"""The proxy's executor on CUDA's copy engine, against a fake of the driver's functions that it calls. No GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ep_lib.errors import BackendUnavailable, PeerTimeout
from ep_lib.jit import nvrtc, toolkit
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import Rings, op

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")

FAKE = Path(__file__).parent / "support" / "fake_cuda.cpp"
BYTES = 4096


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    command = [toolkit.find_compiler().path, "-std=c++17", "-O1", "-shared", "-fPIC", str(FAKE), "-o", str(library)]
    subprocess.run(command, check=True)
    return str(library)


def executor(driver: str, addresses: Sequence[int], device: int = 0, queues: int = 1) -> engine.CopyEngine:
    return engine.CopyEngine(queues, addresses, BYTES, 0, device=device, arch="sm_90", library=driver)


def test_every_operation(driver: str) -> None:
    mine, theirs = (np.zeros(BYTES, np.uint8) for _ in range(2))
    mine[:1000], theirs[3000:3100] = np.arange(1000) % 251, 9
    rings = Rings(2, 32)
    proxy = engine.Proxy(rings, executor(driver, [mine.ctypes.data, theirs.ctypes.data], queues=2), cpus=[-1, -1])

    def push(name: str, count: int = 1, ring: int = 0, **fields: int) -> None:
        engine.push(rings, ring, {"op": op(name), "peer": 1, **fields}, count)

    push("kProxyWrite", target=1000, source=1, bytes=999)
    push("kProxyFence")
    push("kProxyWriteSetSignal", target=2000, source=0, bytes=8, signal=16, value=5)
    push("kProxyWriteAddSignal", target=2008, source=8, bytes=8, signal=16, value=2)
    push("kProxyAdd32", signal=24, value=3)
    push("kProxyRead", target=3500, source=3000, bytes=100)
    push("kProxyAdd64", signal=32, value=7, count=500, ring=1)
    for ring in range(2):
        engine.flush(rings, ring)
    assert proxy.failure() == ""
    assert np.array_equal(theirs[1000:1999], mine[1:1000])
    assert np.array_equal(theirs[2000:2016], mine[:16])
    assert list(theirs[16:40].view(np.uint64)) == [7, 3, 3500]
    assert (mine[3500:3600] == 9).all()
    proxy.stop()


@pytest.mark.parametrize(
    ("call", "peer", "told"),
    [
        ("cuMemcpyAsync", 1, "CUDA failed (2, as the test wants it) at copying"),
        ("cuEventQuery", 1, "CUDA failed (2, as the test wants it) at a copy"),
        ("", 2, "for rank 2, whose memory this process has not mapped"),
    ],
)
def test_what_fails_later(driver: str, call: str, peer: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heap, rings = np.zeros(BYTES, np.uint8), Rings(1, 32)
    proxy = engine.Proxy(rings, executor(driver, [heap.ctypes.data, heap.ctypes.data, 0]))
    monkeypatch.setenv("FAKE_CUDA_FAILS", call)
    engine.push(rings, 0, {"op": op("kProxyWrite"), "peer": peer, "target": 64, "bytes": 8})
    with pytest.raises(PeerTimeout):
        engine.flush(rings, 0, 0.2)
    assert told in proxy.failure()


def test_what_fails_at_the_start(driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"CUDA failed \(101, as the test wants it\) at looking for a GPU"):
        executor(driver, [0], device=7)
    with pytest.raises(BackendUnavailable, match=r"none\.so cannot be loaded"):
        executor(str(tmp_path / "none.so"), [0])
    with pytest.raises(BackendUnavailable, match=r"has no cuInit: is that CUDA's driver"):
        executor("libm.so.6", [0])
    monkeypatch.setenv("FAKE_CUDA_FAILS", "cuInit")
    with pytest.raises(BackendUnavailable, match="at its start"):
        executor(driver, [0])

"""The proxy's executor on CUDA's copy engine, against a fake of the driver's functions that it calls. No GPU."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import TESTS

from ep_lib.bootstrap import SingleBootstrap
from ep_lib.errors import BackendUnavailable, PeerTimeout
from ep_lib.jit import device_state, nvrtc, toolkit
from ep_lib.transports import base
from ep_lib.transports.proxy import engine, gpu_heap
from ep_lib.transports.proxy.rings import COMMAND, PRODUCER, RING, RINGS, Rings, op

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")

FAKE = TESTS / "support" / "fake_cuda.cpp"
BYTES = 4096


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    command = [toolkit.find_compiler().path, "-std=c++17", "-O1", "-shared", "-fPIC", str(FAKE), "-o", str(library)]
    subprocess.run(command, check=True)
    return str(library)


def executor(
    driver: str, addresses: Sequence[int], device: int = 0, queues: int = 1, nbytes: int = BYTES
) -> engine.CopyEngine:
    return engine.CopyEngine(queues, addresses, nbytes, 0, device=device, arch="sm_90", library=driver)


def calls(driver: str) -> np.ndarray[Any, Any]:
    """How often the driver was asked to copy, to copy a batch, to write a value, and to launch a kernel."""
    counts = (ctypes.c_int * 4)()
    ctypes.CDLL(driver).fake_cuda_calls(counts)
    return np.array(counts)


@pytest.mark.parametrize("writes_values", [True, False])
def test_every_operation(driver: str, writes_values: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not writes_values:
        monkeypatch.setenv("FAKE_CUDA_WRITES_NO_VALUES", "1")
    mine, theirs = (np.zeros(BYTES, np.uint8) for _ in range(2))
    mine[:1000], theirs[3000:3100] = np.arange(1000) % 251, 9
    rings = Rings(2, 32)
    proxy = engine.Proxy(rings, executor(driver, [mine.ctypes.data, theirs.ctypes.data], queues=2), cpus=[-1, -1])
    before = calls(driver)

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
    _, batched, written, launched = calls(driver) - before
    batches = proxy.counts().batches  # each is followed by the number of its batch
    assert (batched, written + launched) == (0, 503 + batches)
    assert launched == (502 if writes_values else 503 + batches)
    assert np.array_equal(theirs[1000:1999], mine[1:1000])
    assert np.array_equal(theirs[2000:2016], mine[:16])
    assert list(theirs[16:40].view(np.uint64)) == [7, 3, 3500]
    assert (mine[3500:3600] == 9).all()
    proxy.stop()


def test_copies_that_continue_each_other_are_one(driver: str) -> None:
    mine, theirs, rings = np.zeros(BYTES, np.uint8), np.zeros(BYTES, np.uint8), Rings(1, 32)
    mine[:3000] = np.arange(3000) % 251
    parts = [*range(0, 1000, 100), 2000, 2100, 1500]  # three pieces
    for part in parts:  # one batch: the proxy starts when all is in the ring
        engine.push(rings, 0, {"op": op("kProxyWrite"), "peer": 1, "target": part, "source": part, "bytes": 100})
    to_self = {"op": op("kProxyWrite"), "peer": 0, "bytes": 100}
    engine.push(rings, 0, {**to_self, "source": 0, "target": 3000})
    engine.push(rings, 0, {**to_self, "source": 100, "target": 3100})
    engine.push(rings, 0, {**to_self, "source": 3100, "target": 3150, "bytes": 50})  # reads what was just written
    engine.push(rings, 0, {**to_self, "source": 3150, "target": 3200, "bytes": 50})
    made = executor(driver, [mine.ctypes.data, theirs.ctypes.data])
    before = calls(driver)
    proxy = engine.Proxy(rings, made)
    engine.flush(rings, 0)
    assert list(calls(driver) - before) == [3 + 1 + 2, 0, 1, 0]  # and "done" once
    assert all(np.array_equal(theirs[part : part + 100], mine[part : part + 100]) for part in parts)
    assert np.array_equal(mine[3150:3200], mine[3200:3250])
    assert np.array_equal(mine[3150:3200], mine[100:150])
    proxy.stop()


@pytest.mark.parametrize("has_batches", [True, False])
def test_large_copies_go_together_in_any_order(driver: str, has_batches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_batches:
        monkeypatch.setenv("FAKE_CUDA_FAILS", "cuMemcpyBatchAsync")
    large = 64 << 10
    mine, theirs, rings = np.zeros(8 * large, np.uint8), np.zeros(8 * large, np.uint8), Rings(1, 32)
    made = executor(driver, [mine.ctypes.data, theirs.ctypes.data], nbytes=mine.nbytes)
    mine[: 6 * large] = np.arange(6 * large) % 251

    def write(target: int, source: int, nbytes: int, operation: str = "kProxyWrite", **more: int) -> None:
        given = {"op": op(operation), "peer": 1, "target": target, "source": source, "bytes": nbytes}
        engine.push(rings, 0, given | more)

    for part in (4, 2, 0):  # three pieces, one call; the last one goes on
        write(part * large, part * large, large)
    write(large, large, large)
    write(6 * large, 0, 8)  # small: after the large ones, in a call of its own
    write(3 * large, 3 * large, large)
    engine.push(rings, 0, {"op": op("kProxyFence"), "peer": 1})
    write(5 * large, 5 * large, large)
    write(6 * large, large, large)  # over the small one, behind it
    write(6 * large, 2 * large, large)  # the same place again: the last one wins
    write(7 * large, 4 * large, 8, "kProxyWriteSetSignal", signal=8 * large - 8, value=3)
    before = calls(driver)
    proxy = engine.Proxy(rings, made)
    engine.flush(rings, 0)
    # (4 2 0-1) 6 3 fence (5 6) 6 7
    copied, batched, written, launched = calls(driver) - before
    assert (copied, batched) == ((4, 2) if has_batches else (4 + 3 + 2, 0))
    assert (written, launched) == (2, 0)
    assert proxy.failure() == ""
    assert np.array_equal(theirs[: 6 * large], mine[: 6 * large])
    assert np.array_equal(theirs[6 * large : 7 * large], mine[2 * large : 3 * large])
    assert int(theirs[-8:].view(np.uint64)[0]) == 3
    proxy.stop()


@pytest.mark.parametrize(
    ("call", "peer", "told"),
    [
        ("cuMemcpyAsync", 1, "CUDA failed (2, as the test wants it) at copying"),
        ("cuStreamWriteValue64", 1, "at setting a signal"),
        ("cuStreamQuery", 1, "CUDA failed (2, as the test wants it) at a copy"),
        ("", 2, "for rank 2, whose memory this process has not mapped"),
    ],
)
def test_what_fails_later(driver: str, call: str, peer: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heap, rings = np.zeros(BYTES, np.uint8), Rings(1, 32)
    proxy = engine.Proxy(rings, executor(driver, [heap.ctypes.data, heap.ctypes.data, 0]))
    monkeypatch.setenv("FAKE_CUDA_FAILS", call)
    engine.push(rings, 0, {"op": op("kProxyWriteSetSignal"), "peer": peer, "target": 64, "bytes": 8})
    with pytest.raises(PeerTimeout):
        engine.flush(rings, 0, 0.2)
    assert told in proxy.failure()
    proxy.stop()  # what is under way still reads the heap


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


class Runtime:
    """What a heap calls of CUDA's runtime, on this process's memory."""

    CUDARuntimeError = RuntimeError

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}

    def malloc(self, nbytes: int, flags: int = 0) -> int:
        block = ctypes.create_string_buffer(nbytes + 4096)
        address = -(-ctypes.addressof(block) // 4096) * 4096
        ctypes.memset(address, 0xEE, nbytes)
        self.blocks[address] = block
        return address

    hostAlloc = malloc

    def free(self, address: int) -> None:
        del self.blocks[address]

    freeHost = free

    def memset(self, address: int, value: int, nbytes: int) -> None:
        ctypes.memset(address, value, nbytes)

    def memcpy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        ctypes.memmove(to, source, nbytes)

    def deviceGetAttribute(self, which: int, device: int) -> int:
        return {75: 9, 76: 0}[which]

    def deviceSynchronize(self) -> None:
        pass


def test_the_heap_of_gpus_tells_kernels_of_its_rings(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    for module in (base, gpu_heap):
        monkeypatch.setattr(module, "import_cupy", lambda: cupy)
    monkeypatch.setattr(engine, "CopyEngine", functools.partial(engine.CopyEngine, library=driver))
    heap = gpu_heap.GpuProxyHeap(base.GpuSetup(SingleBootstrap(), 0, 1 << 20, 5.0))
    head = view(heap.addresses[0], device_state.HEADER.dtype)
    told = view(int(head["proxy"]), RINGS.dtype)
    assert [int(told[name]) for name in ("count", "num_queue_pairs", "keeps_order")] == [4, 4, 1]
    ring = view(int(told["rings"]) + 3 * RING.size, RING.dtype)  # the last one, as a kernel finds it
    view(int(ring["producer"]), PRODUCER.dtype)["head"] = 1
    slot = view(int(ring["slots"]), COMMAND.dtype)
    seal = 1 << 48
    command = {"op": op("kProxyWriteSetSignal"), "signal": 4096 | seal, "value": 7, "source": seal, "seal": 1}
    for name, value in {**command, "number": 1}.items():
        slot[name] = value
    assert heap._rings is not None
    engine.flush(heap._rings, 3)
    assert int(view(heap.addresses[0] + 4096, np.dtype(np.uint64))) == 7
    assert heap.failure() == ""
    engine.push(heap._rings, 0, {"op": op("kProxyAdd64"), "peer": 1})
    while not heap.failure():
        pass
    with pytest.warns(
        RuntimeWarning, match="rank 0: its proxy has given up: command 0 of ring 0 is for rank 1; ranks are 0 to 0"
    ):
        heap.close(orderly=True)
    assert runtime.blocks == {}


def view(address: int, dtype: Any) -> Any:
    return np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype)[0:1].reshape(())

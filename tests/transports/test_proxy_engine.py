"""The native proxy: threads that take commands out of rings, and executors that carry them out. No GPU, no emulator."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ep_lib import cli
from ep_lib.errors import ArgumentError, PeerTimeout
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import COMMAND, PRODUCER, RING, Rings, op

BYTES = 4096
SOON = 0.2  # seconds to wait for what does not come


class Two:
    """The heaps of two ranks, and a proxy of rank 0 that copies between them."""

    def __init__(self, rings: int = 1, slots: int = 32, sealed: bool = False, **options: Any) -> None:
        self.heaps = [np.zeros(BYTES, np.uint8) for _ in range(2)]
        self.rings = Rings(rings, slots, sealed=sealed)
        self.options = options
        self.start(range(1))

    def start(self, threads: range) -> None:
        addresses = [heap.ctypes.data for heap in self.heaps]
        executor = engine.Memory(self.rings.count, addresses, BYTES, 0, **self.options)
        self.proxy = engine.Proxy(self.rings, executor, cpus=[-1 for _ in threads])

    def __call__(self, name: str, count: int = 1, ring: int = 0, **fields: int) -> None:
        engine.push(self.rings, ring, {"op": op(name), "peer": 1, **fields}, count)

    def flush(self, **options: Any) -> None:
        for ring in range(self.rings.count):
            engine.flush(self.rings, ring, **options)


@pytest.mark.parametrize(("staging_bytes", "sealed"), [(0, False), (100, False), (0, True)])
def test_every_operation(staging_bytes: int, sealed: bool) -> None:
    two = Two(staging_bytes=staging_bytes, sealed=sealed)
    mine, theirs = two.heaps
    mine[:1000] = np.arange(1000) % 251
    theirs[3000:3100] = 9
    two("kProxyWrite", target=1000, source=1, bytes=999)
    two("kProxyFence")
    two("kProxyWriteSetSignal", target=2000, source=0, bytes=8, signal=16, value=5)
    two("kProxyWriteAddSignal", target=2008, source=8, bytes=8, signal=16, value=2)
    two("kProxyAdd32", signal=24, value=2**32 + 3)
    two("kProxyAdd64", signal=32, value=2**40, count=3)
    two("kProxyRead", target=3500, source=3000, bytes=100)
    two("kProxyNothing")
    two.flush()
    assert np.array_equal(theirs[1000:1999], mine[1:1000])
    assert np.array_equal(theirs[2000:2016], mine[:16])
    assert list(theirs[16:40].view(np.uint64)) == [7, 3, 3 * 2**40]
    assert (mine[3500:3600] == 9).all()
    assert two.proxy.counts().commands == 10
    assert two.proxy.counts().bytes == 999 + 8 + 8 + 100


def view(address: int, struct: Any) -> Any:
    return np.frombuffer((ctypes.c_char * struct.size).from_address(address), struct.dtype).reshape(())


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("late", ["source", "signal", "seal", "number"])
def test_a_part_of_a_slot_that_comes_late_is_waited_for(late: str) -> None:
    """Every part but the late one is of command 33, which lies where command 1 lay."""
    two = Two(sealed=True)
    two("kProxyAdd64", signal=8, value=1, count=32)
    two.flush()
    parts = {"op": op("kProxyAdd64"), "peer": 1, "signal": 16, "value": 5}
    sealed = {"source": 33 << 48, "signal": 16 | 33 << 48, "seal": 33, "number": 33}
    ring = view(two.rings.ring(0), RING)
    view(int(ring["producer"]), PRODUCER)["head"] = 33
    slot = view(int(ring["slots"]), COMMAND)
    for name, value in (parts | sealed).items():
        if name != late:
            slot[name] = value
    with pytest.raises(PeerTimeout):
        two.flush(timeout=SOON)
    slot[late] = sealed[late]
    two.flush()
    assert list(two.heaps[1][8:24].view(np.uint64)) == [32, 5]


@pytest.mark.parametrize("sealed", [False, True])
def test_many_times_the_slots_of_several_rings_by_several_threads(sealed: bool) -> None:
    two = Two(rings=3, sealed=sealed)
    two.proxy.stop()
    two.start(range(2))
    for ring in range(3):
        two("kProxyAdd64", signal=8, value=1, count=1000, ring=ring)
    two.flush()
    assert two.heaps[1][8:16].view(np.uint64)[0] == 3000
    assert [two.proxy.counts(thread).commands for thread in range(2)] == [2000, 1000]


def test_several_threads_push_into_one_ring() -> None:
    two = Two()
    fields = {"signal": 8, "value": 1, "count": 2000}
    pushers = [threading.Thread(target=two, args=("kProxyAdd64",), kwargs=fields) for _ in range(4)]
    for pusher in pushers:
        pusher.start()
    for pusher in pushers:
        pusher.join()
    two.flush()
    assert two.heaps[1][8:16].view(np.uint64)[0] == 8000


def test_another_proxy_goes_on_where_the_first_one_stopped() -> None:
    two = Two()
    two("kProxyAdd64", signal=8, value=1, count=40)
    two.flush()
    two.proxy.stop()
    two("kProxyAdd64", signal=8, value=1, count=20)
    two.start(range(1))
    two.flush()
    assert two.heaps[1][8:16].view(np.uint64)[0] == 60


def test_a_full_ring_that_nobody_serves() -> None:
    rings = Rings(1, 32)
    with pytest.raises(PeerTimeout, match=r"pushed 32 of 33 commands into ring 0 of a proxy within 0\.2 s"):
        engine.push(rings, 0, {}, 33, timeout=SOON)
    with pytest.raises(PeerTimeout, match="does a Proxy serve the ring"):
        engine.flush(rings, 0, SOON)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("kProxyWrite", {"peer": 2}, "command 0 of ring 0 is for rank 2; ranks are 0 to 1"),
        ("kProxyWrite", {"bytes": 1, "target": BYTES}, "moves 1 bytes from offset 0 to offset 4096"),
        ("kProxyRead", {"bytes": 2**64 - 1, "source": 2}, "moves 18446744073709551615 bytes"),
        (
            "kProxyAdd64",
            {"signal": BYTES - 4},
            "has its signal at offset 4092; it must be a multiple of 8 in a heap of 4096",
        ),
        ("kProxyAdd32", {"signal": 2}, "a multiple of 4"),
        ("kNumProxyOps", {}, "command 0 of ring 0 has operation 8; there are 0 to 7"),
    ],
)
def test_what_no_executor_may_touch(name: str, fields: dict[str, int], told: str) -> None:
    two = Two()
    two(name, **fields)
    with pytest.raises(PeerTimeout):
        two.flush(timeout=SOON)
    assert told in two.proxy.failure()
    assert not two.heaps[1].any()


def test_threads_are_pinned() -> None:
    cpu = min(os.sched_getaffinity(0))
    rings = Rings(1, 32)
    proxy = engine.Proxy(rings, engine.Nothing(1), cpus=[cpu])
    engine.push(rings, 0, {}, 3)
    engine.flush(rings, 0)
    assert proxy.failure() == ""
    proxy.stop()
    with pytest.raises(ArgumentError, match="cannot be pinned to CPU 4095"):
        engine.Proxy(rings, engine.Nothing(1), cpus=[4095])
    with pytest.raises(ArgumentError, match="number of proxy threads"):
        engine.Proxy(rings, engine.Nothing(1), cpus=[-1, -1])


def test_the_cpus_of_a_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, cpus in enumerate(("0-1,4", "2-3")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    monkeypatch.setattr(engine, "_NUMA_NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 4})
    assert [engine.cpus_of_node(node) for node in range(2)] == [[0, 4], [3]]
    with pytest.raises(ArgumentError, match="no NUMA node 2; this host has node0, node1"):
        engine.cpus_of_node(2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(ArgumentError, match="no CPU of NUMA node 1"):
        engine.cpus_of_node(1)


def test_an_idle_thread_naps_and_wakes() -> None:
    rings, executor = Rings(1, 32), engine.Nothing(1, delays=8)
    proxy = engine.Proxy(rings, executor, spin=0.0)
    while proxy.counts().naps < 3:
        pass
    engine.push(rings, 0, {}, 8, stamps=True)
    engine.flush(rings, 0)
    assert executor.delays_ns.all()


@pytest.mark.slow
def test_bench_local(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "local.png"
    asked = ["bench", "local", "--seconds", "0.02", "--bytes", "64,4K", "--json", "--figure", str(figure)]
    assert cli.main(asked) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["delay_ns"]["median"] > 0
    assert report["commands_per_s"] > 0
    assert [row["bytes"] for row in report["results"]] == [64, 4096]
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert cli.main([*asked[:4], "--bytes", "100", "--staged", "--threads", "2"]) == 0
    assert "through a buffer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--threads", "0"], "--threads is 0"),
        (["--seconds", "0"], "--seconds is 0; it must be above 0"),
        (["--cpus", "0,1"], "--cpus names 2 CPUs, and there are 1 proxy threads"),
        (["--cpus", "4095"], "cannot be pinned to CPU 4095"),
        (["--cpus", "node77"], "there is no NUMA node 77"),
        (["--cpus", "0,x"], "--cpus is '0,x'; it must be numbers such as 0,1"),
    ],
)
def test_bench_local_refuses(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "local", *options]) == 1
    assert told in " ".join(capsys.readouterr().err.split())

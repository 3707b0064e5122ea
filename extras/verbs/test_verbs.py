"""The proxy's executor on libibverbs, against a fake of the verbs that it calls. No NIC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verbs

from ep_lib.errors import BackendUnavailable, PeerTimeout
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import Rings, op

FAKE = Path(__file__).parent / "fake"
BYTES = 1 << 16


def an_executor(heap: np.ndarray[Any, Any], rank: int, queues: int = 1, **options: Any) -> verbs.Verbs:
    fake: dict[str, Any] = {"includes": [FAKE], "libraries": []}
    return verbs.Verbs(heap, ranks=2, rank=rank, queues=queues, **fake, **options)


class Two:
    """Two ranks of this process, connected by the fake."""

    def __init__(self, queues: int = 1) -> None:
        self.heaps = [np.zeros(BYTES, np.uint8) for _ in range(2)]
        executors = [an_executor(heap, rank, queues) for rank, heap in enumerate(self.heaps)]
        for rank, executor in enumerate(executors):
            executor.connect(1 - rank, executors[1 - rank].address(rank))
        self.rings = [Rings(queues, 32) for _ in range(2)]
        self.proxies = [engine.Proxy(ring, executor) for ring, executor in zip(self.rings, executors, strict=True)]

    def __call__(self, name: str, count: int = 1, ring: int = 0, **fields: int) -> None:
        engine.push(self.rings[0], ring, {"op": op(name), "peer": 1, **fields}, count)

    def flush(self, timeout: float = 20.0) -> None:
        for ring in range(self.rings[0].count):
            engine.flush(self.rings[0], ring, timeout)

    def wait_for(self, counters: list[int]) -> None:
        """The peer's proxy applies signals."""
        found = self.heaps[1][16 : 16 + 8 * len(counters)].view(np.uint64)
        while list(found) != counters:
            assert [proxy.failure() for proxy in self.proxies] == ["", ""], list(found)

    def stop(self) -> None:
        for proxy in self.proxies:
            proxy.stop()


@pytest.mark.slow
def test_every_operation() -> None:
    two = Two()
    mine, theirs = two.heaps
    mine[:1000], theirs[3000:3100] = np.arange(1000) % 251, 9
    two("kProxyWrite", target=1000, source=1, bytes=999)
    two("kProxyWriteSetSignal", target=2000, source=0, bytes=8, signal=16, value=5)
    two("kProxyWriteAddSignal", target=2008, source=8, bytes=8, signal=16, value=2)  # by an immediate
    two("kProxyWriteAddSignal", target=2016, source=16, bytes=8, signal=16, value=256)  # by a message
    two("kProxyAdd32", signal=24, value=2**32 + 3)
    two("kProxyAdd64", signal=32, value=2**40, count=3)
    two("kProxyRead", target=3500, source=3000, bytes=100)
    two("kProxyFence")
    two("kProxyWrite", bytes=0)
    two("kProxyNothing")
    two.flush()
    two.wait_for([263, 3, 3 * 2**40])
    assert np.array_equal(theirs[1000:1999], mine[1:1000])
    assert np.array_equal(theirs[2000:2024], mine[:24])
    assert (mine[3500:3600] == 9).all()
    two.stop()


@pytest.mark.extended
def test_more_than_the_queues_hold() -> None:
    two = Two(queues=2)
    for ring in range(2):
        two("kProxyWriteAddSignal", signal=16 + 8 * ring, value=1, bytes=8, source=64, target=128, count=700, ring=ring)
    two("kProxyAdd64", signal=32, value=1000, count=700)
    two.flush()
    two.wait_for([700, 700, 700_000])
    two.stop()


@pytest.mark.extended
def test_what_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    monkeypatch.setenv("FAKE_VERBS", "request")
    two("kProxyWrite", bytes=8)
    with pytest.raises(PeerTimeout):
        two.flush(0.2)
    assert two.proxies[0].failure() == "a request failed: transport retry counter exceeded; is the peer still there?"
    two.stop()
    monkeypatch.delenv("FAKE_VERBS")
    two = Two()
    engine.push(two.rings[0], 0, {"op": op("kProxyWrite"), "peer": 0, "bytes": 8})
    with pytest.raises(PeerTimeout):
        two.flush(0.2)
    assert two.proxies[0].failure() == "a command is for rank 0, with which nothing is connected"
    two.stop()


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("device", "this host has no RDMA device"),
        ("port", "port 1 of the RDMA device is not active"),
        ("memory", "65536 bytes cannot be registered with the NIC"),
    ],
)
def test_what_fails_at_the_start(fails: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VERBS", fails)
    with pytest.raises(BackendUnavailable, match=told):
        an_executor(np.zeros(BYTES, np.uint8), 0)


def test_what_does_not_fit() -> None:
    heap = np.zeros(BYTES, np.uint8)
    with pytest.raises(BackendUnavailable, match="the RDMA device 'mlx5_9' cannot be opened"):
        an_executor(heap, 0, device="mlx5_9")
    with pytest.raises(BackendUnavailable, match="9 rings; this executor serves at most 8"):
        an_executor(heap, 0, queues=9)
    executor = an_executor(heap, 0)
    with pytest.raises(BackendUnavailable, match="address has 3 bytes"):
        executor.connect(1, b"abc")
    with pytest.raises(BackendUnavailable, match="another number of rings than 1"):
        executor.connect(1, an_executor(heap, 1, queues=2).address(0))

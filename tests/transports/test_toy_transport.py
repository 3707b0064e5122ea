"""A new transport is one folder and one line: the toy in tests/support/toy_transport stages through host memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import buffer_cases, ibgda_shim, pcie_cases, toy_transport
from support.dispatch_combine_cases import make_case
from support.toy_transport.heap import ToyHeap, staged

from ep_lib import Kernel, Rank, spawn
from ep_lib.errors import ArgumentError
from ep_lib.transports import registry
from ep_lib.transports.base import Transport

pytestmark = pytest.mark.slow

SOURCE = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
extern "C" __global__ void post(char* target, const char* source, size_t bytes, int peer) {
    ep::net_put_nbi(target, source, bytes, peer);
}
extern "C" __global__ void complete() { ep::net_quiet(); }
extern "C" __global__ void write_and_signal(char* target, const char* source, size_t bytes, uint64_t* signal,
                                            int peer) {
    ep::net_put_signal_nbi_block(target, source, bytes, signal, 1, peer);
}
extern "C" __global__ void wait_and_read(const uint64_t* signal, const char* inbox, size_t bytes, int peer, char* out) {
    if (!ep::wait_until_ge_block(signal, 1, {ep::kPhaseSignal, peer, -1})) return;
    ep::copy_bytes<ep::kBlockUnroll>(out, inbox, bytes, threadIdx.x, blockDim.x);
}
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(registry.TRANSPORTS, "toy", registry.Entry(emulator="support.toy_transport.heap:ToyHeap"))
    staged.clear()
    yield


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name)


def write(rank: Rank, size: int) -> bool:
    inbox, outbox = (rank.symmetric(size, np.uint8) for _ in range(2))
    signal, out = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(size, np.uint8))
    outbox[:] = ibgda_shim.data_of(rank.rank, size)
    peer, source = (rank.rank + 1) % rank.world_size, (rank.rank - 1) % rank.world_size
    kernel("write_and_signal").launch(rank, 1, 64, inbox, outbox, size, signal, peer)
    kernel("wait_and_read").launch(rank, 1, 64, signal, inbox, size, source, out)
    return np.array_equal(rank.to_host(out), ibgda_shim.data_of(source, size))


def test_it_is_small() -> None:
    folder = Path(toy_transport.__file__).parent
    files = [*folder.rglob("*.py"), *folder.rglob("*.cuh")]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 200


def test_it_has_the_methods_of_a_transport() -> None:
    """It is the model for others: with the parameters of each."""
    for name, method in vars(Transport).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert (
                inspect.signature(getattr(ToyHeap, name)).parameters.keys()
                == inspect.signature(method).parameters.keys()
            )


def test_a_put_stays_in_the_staging_area_until_it_is_carried_on() -> None:
    def program(rank: Rank) -> list[int]:
        inbox, outbox = (rank.symmetric(3000, np.uint8) for _ in range(2))
        outbox[:] = 7
        rank.barrier()
        kernel("post").launch(rank, 1, 1, inbox, outbox, 3000, 1 - rank.rank)
        rank.barrier()
        posted = int(inbox.sum())
        rank.barrier()
        kernel("complete").launch(rank, 1, 1)
        rank.barrier()
        return [posted, int(inbox.sum())]

    assert spawn(program, 2, "emulator", transport="toy") == [[0, 21000]] * 2
    assert staged == {0: 3000, 1: 3000}


def test_write_and_signal() -> None:
    for seed in range(12):
        ranks, size = 2 + seed % 3, (1, 500, 1024, 40_000)[seed % 4]
        assert spawn(write, ranks, "emulator", seed=seed, transport="toy", args=(size,)) == [True] * ranks
        assert [staged[rank] for rank in range(ranks)] == [size] * ranks


@pytest.mark.parametrize(("send", "receive"), ibgda_shim.LADDER)
def test_the_ibgda_shim(send: str, receive: str) -> None:
    for seed in range(6):
        args = (send, receive)
        assert spawn(ibgda_shim.ring, 3, "emulator", seed=seed, transport="toy", args=args) == [True] * 3
        assert min(staged.values()) > 0


@pytest.mark.extended
def test_pcie_mode_against_the_oracle() -> None:
    for seed in range(6):
        case = make_case(40 + seed, world_size=2 + seed % 3)
        results = spawn(
            pcie_cases.run_case, case.world_size, "emulator", seed=seed, transport="toy", args=(case, seed * 5)
        )
        buffer_cases.check_case(case, results)
        assert min(staged.values()) > 0


def test_what_is_not_registered_is_refused() -> None:
    def nothing(rank: Rank) -> Any: ...

    registry.TRANSPORTS.pop("toy")
    with pytest.raises(ArgumentError, match="transport is 'toy'; there is none of that name"):
        spawn(nothing, 1, "emulator", transport="toy")

"""``transport="proxy"`` on GPUs: rings, native proxies, the copy engine. Every operation, the shim and PCIe mode run
on it in test_nvshmem_gpu.py and test_pcie.py."""

from __future__ import annotations

import numpy as np
import pytest
from support import ROOT, TESTS
from support.proxy_cases import RIGHT, WORDS, add_many, exchange

from ep_lib import Kernel, Rank, spawn
from ep_lib.errors import PeerTimeout

SOURCE = TESTS / "kernels" / "proxy_gpu.cu"
BENCHMARK = ROOT / "benchmarks" / "proxy_gpu.cu"


def kernel(name: str) -> Kernel:
    return Kernel.from_file(SOURCE, name)


@pytest.mark.gpu(count=2, own=True)
def test_write_and_signal() -> None:
    assert spawn(exchange, 2, "cuda", timeout=20, transport="proxy", args=(RIGHT,)) == [list(range(1, WORDS + 1))] * 2


@pytest.mark.gpu(count=2, own=True)
@pytest.mark.parametrize("by_warps", [False, True])
def test_many_times_the_slots_of_a_ring(by_warps: bool) -> None:
    assert spawn(add_many, 2, "cuda", timeout=20, transport="proxy", args=(9, by_warps)) == [3 * 9 * 64] * 2


def fill_the_gpu(rank: Rank) -> tuple[int, int]:
    inbox, outbox = (rank.symmetric(WORDS, np.uint64) for _ in range(2))
    signal, wrong = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(1, np.uint64))
    sms = rank._backend.sm_count  # type: ignore[attr-defined]
    rank.barrier()
    kernel("all_wait").launch(rank, 4 * sms, 1024, inbox, outbox, WORDS, signal, 1 - rank.rank, wrong)
    rank.barrier()
    return int(rank.to_host(signal)[0]), int(rank.to_host(wrong)[0])


@pytest.mark.gpu(count=2, own=True)
def test_a_signal_is_set_while_kernels_fill_the_gpu() -> None:
    assert spawn(fill_the_gpu, 2, "cuda", timeout=20, transport="proxy") == [(1, 0)] * 2


SLOW = """
#include <ep/net.cuh>
extern "C" __global__ void put_later(uint64_t* inbox, const uint64_t* outbox, int peer) {
    for (const uint64_t begin = ep::globaltimer_ns(); ep::globaltimer_ns() - begin < 100000000;) {
    }
    ep::net_put_nbi(inbox, outbox, 8, peer);
    ep::net_quiet(peer);
}
"""
ADD = """#include <stdint.h>
extern "C" __global__ void add_NUMBER(uint64_t* count) { *count += NUMBER; }"""


def load_while_another_waits(rank: Rank) -> int:
    inbox, outbox, count = (rank.symmetric(1, np.uint64) for _ in range(3))
    rank.barrier()
    for number in map(str, range(1, 5)):
        Kernel.from_source(SLOW, "put_later").launch(rank, 1, 1, inbox, outbox, 1 - rank.rank)
        Kernel.from_source(ADD.replace("NUMBER", number), f"add_{number}").launch(rank, 1, 1, count)
    rank.barrier()
    return int(rank.to_host(count)[0])


@pytest.mark.gpu(count=2, own=True)
def test_a_kernel_is_loaded_while_another_one_waits_for_the_proxy() -> None:
    assert spawn(load_while_another_waits, 2, "cuda", timeout=10, transport="proxy") == [10, 10]


def ask_for_rank_7(rank: Rank) -> str:
    kernel("wrong_rank").launch(rank, 1, 1, rank.symmetric(1, np.uint64), 7)
    try:
        rank.synchronize()
    except PeerTimeout as error:
        return " ".join([str(error), *error.__notes__])
    return "nothing"


@pytest.mark.gpu(count=2, own=True)
def test_a_proxy_that_gave_up_is_a_timeout_that_says_why() -> None:
    for rank, told in enumerate(spawn(ask_for_rank_7, 2, "cuda", timeout=2, transport="proxy")):
        assert "waited too long for its proxy, which has dealt with 0 commands" in told
        assert f"rank {rank}: its proxy has given up: command 0 of ring 0 is for rank 7; ranks are 0 to 1" in told

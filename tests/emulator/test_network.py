"""The emulated network: what rc and srd promise, what they do not, and that a seed replays them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ep_lib
from ep_lib import Fabric, errors

SOURCE = r"""
#include <ep/wait.cuh>

// rank 0 sends, rank 1 waits for the signal and copies what it finds
template <int kOrder>
__device__ void pair(uint64_t* data, uint64_t* source, uint64_t* signal, uint64_t* out, int n) {
    if (epemu_rank() == 0) {
        for (int i = 0; i < n; i++) source[i] = 1000 + i;
        if (kOrder == 3) {
            epemu_net_put_signal(1, 0, data, source, 8 * n, signal, 1, EPEMU_SIGNAL_ADD);
        } else {
            epemu_net_put(1, 0, data, source, 8 * n);
            if (kOrder == 1) epemu_net_quiet(1, 0);
            if (kOrder == 2) epemu_net_fence(1, -1);
            epemu_net_atomic(1, kOrder == 4 ? 1 : 0, signal, 1, 8, EPEMU_SIGNAL_ADD);
        }
        if (kOrder == 5) {
            for (int i = 0; i < n; i++) source[i] = 7;  // before any quiet
        }
    } else {
        if (!ep::wait_until_ge(signal, 1, {ep::kPhaseSignal, 0, -1})) return;
        for (int i = 0; i < n; i++) out[i] = data[i];
    }
}
#define PAIR(name, order)                                                                        \
    extern "C" __global__ void name(uint64_t* d, uint64_t* s, uint64_t* f, uint64_t* o, int n) { \
        pair<order>(d, s, f, o, n);                                                              \
    }
PAIR(without_order, 0)
PAIR(with_quiet, 1)
PAIR(with_fence, 2)
PAIR(put_signal, 3)
PAIR(other_queue_pair, 4)
PAIR(source_reused, 5)

extern "C" __global__ void fetch(uint64_t* mine, uint64_t* landing, int n) {
    const int peer = 1 - epemu_rank();
    epemu_net_get(peer, 0, landing, mine, 8 * n);
    epemu_net_quiet(-1, -1);
}

extern "C" __global__ void count(uint64_t* counter, int times) {
    for (int i = 0; i < times; i++) epemu_net_atomic(0, 0, counter, 1, 8, EPEMU_SIGNAL_ADD);
    epemu_net_quiet(0, -1);
}
extern "C" __global__ void count_here(unsigned long long* counter, int times) {
    for (int i = 0; i < times; i++) atomicAdd(counter, 1ull);
}

extern "C" __global__ void load_directly(int* mine, int peer, int* out) {
    const size_t offset = reinterpret_cast<char*>(mine) - epemu_heap_base(epemu_rank());
    out[0] = *reinterpret_cast<int*>(epemu_heap_base(peer) + offset);
}
extern "C" __global__ void reachable(int* out) {
    for (int r = 0; r < epemu_num_ranks(); r++) out[r] = epemu_reachable(r);
}
extern "C" __global__ void bad_post(char* mine, char* elsewhere, int what) {
    if (what == 0) epemu_net_put(7, 0, mine, mine, 8);
    if (what == 1) epemu_net_put(1, 99, mine, mine, 8);
    if (what == 2) epemu_net_put(1, 0, mine, elsewhere, 8);
    if (what == 3) epemu_net_put(1, 0, mine, mine, 1 << 30);
}
"""

WORDS = 24


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_source(SOURCE, name, filename="network_test.cu")


def run_pair(name: str, fabric: Fabric | str, seed: int) -> bool:
    """Whether rank 1 found what rank 0 sent."""

    def main(rank: ep_lib.Rank) -> Any:
        data, source, out = (rank.symmetric(WORDS, np.uint64) for _ in range(3))
        signal = rank.symmetric(1, np.uint64)
        kernel(name).launch(rank, 1, 1, data, source, signal, out, WORDS)
        return rank.to_host(out)

    found = ep_lib.spawn(main, 2, "emulator", fabric=fabric, seed=seed)[1]
    return bool((found == 1000 + np.arange(WORDS)).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rc_is_right", "srd_is_right"),
    [
        ("with_quiet", True, True),
        ("with_fence", True, True),
        ("put_signal", True, True),
        ("without_order", True, False),
        ("other_queue_pair", False, False),
        ("source_reused", False, False),
    ],
)
def test_what_each_fabric_orders(name, rc_is_right, srd_is_right):
    for fabric, right in (("rc", rc_is_right), ("srd", srd_is_right)):
        outcomes = [run_pair(name, fabric, seed) for seed in range(40)]
        assert all(outcomes) == right, f"{name} on {fabric}: right on {sum(outcomes)} of 40 seeds"


def test_a_seed_replays_the_network():
    for seed in range(12):
        assert run_pair("without_order", "srd", seed) == run_pair("without_order", "srd", seed)


@pytest.mark.parametrize("kind", ["p2p", "rc", "srd"])
@pytest.mark.parametrize("seed", range(2))
def test_get_brings_the_peers_words(kind, seed):
    def main(rank: ep_lib.Rank) -> Any:
        mine, landing = rank.symmetric(100, np.uint64, fill=rank.rank + 5), rank.symmetric(100, np.uint64)
        kernel("fetch").launch(rank, 1, 1, mine, landing, 100)
        return rank.to_host(landing).tolist()

    assert ep_lib.spawn(main, 2, "emulator", fabric=kind, seed=seed) == [[6] * 100, [5] * 100]


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_atomics_of_nics_do_not_lose_each_other(kind):
    def main(rank: ep_lib.Rank) -> Any:
        counter = rank.symmetric(1, np.uint64)
        kernel("count").launch(rank, 1, 8, counter, 3)
        rank.barrier()
        return int(rank.to_host(counter)[0])

    for seed in range(10):
        fabric = Fabric(kind, queue_depth=2)
        assert ep_lib.spawn(main, 4, "emulator", fabric=fabric, seed=seed)[0] == 4 * 8 * 3


def test_staged_atomics_are_not_alone_with_the_gpus_own():
    def main(rank: ep_lib.Rank) -> Any:
        counter = rank.symmetric(1, np.uint64)
        kernel("count_here" if rank.rank == 0 else "count").launch(rank, 1, 8, counter, 4)
        rank.barrier()
        return int(rank.to_host(counter)[0])

    def totals(fabric: Fabric) -> list[int]:
        return [ep_lib.spawn(main, 2, "emulator", fabric=fabric, seed=seed)[0] for seed in range(40)]

    assert min(totals(Fabric("rc"))) < 64 and min(totals(Fabric("srd"))) < 64
    assert set(totals(Fabric("rc", global_atomics=True))) == {64}


def test_only_infiniband_has_global_atomics():
    for kind in ("p2p", "srd"):
        with pytest.raises(errors.ArgumentError, match=f"kind '{kind}' has no global_atomics"):
            Fabric(kind, global_atomics=True)


def test_only_ranks_of_a_node_reach_each_other_directly():
    def main(rank: ep_lib.Rank) -> Any:
        out = rank.empty(4, np.int32)
        kernel("reachable").launch(rank, 1, 1, out)
        return rank.to_host(out).tolist()

    two_nodes = ep_lib.spawn(main, 4, "emulator", fabric=Fabric("rc", ranks_per_node=2))
    assert two_nodes == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    no_nvlink = ep_lib.spawn(main, 4, "emulator", fabric=Fabric("rc", ranks_per_node=2, p2p=False))
    assert no_nvlink == np.eye(4, dtype=int).tolist()
    assert ep_lib.spawn(main, 4, "emulator") == np.ones((4, 4), int).tolist()

    def touch(rank: ep_lib.Rank) -> None:
        mine = rank.symmetric(1, np.int32)
        if rank.rank == 0:
            kernel("load_directly").launch(rank, 1, 1, mine, 2, rank.empty(1, np.int32))

    with pytest.raises(
        errors.KernelFault, match=r"memory of rank 2, which loads and stores do not reach[\s\S]*\(post it by ep::net_"
    ):
        ep_lib.spawn(touch, 4, "emulator", fabric=Fabric("rc", ranks_per_node=2))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (0, "rank 7; ranks are 0 to 1"),
        (1, "queue pair 99; there are 4"),
        (2, "not in its own symmetric heap"),
        (3, "not in its own symmetric heap"),
    ],
)
def test_bad_posts_are_faults_with_a_line(what, message):
    def main(rank: ep_lib.Rank) -> None:
        kernel("bad_post").launch(rank, 1, 1, rank.symmetric(8, np.uint8), rank.empty(8, np.uint8), what)

    with pytest.raises(errors.KernelFault, match=message) as caught:
        ep_lib.spawn(main, 2, "emulator", fabric="rc")
    assert "network_test.cu" in caught.value.location


@pytest.mark.parametrize("name", ["with_quiet", "put_signal"])
def test_a_broken_link_is_told(name):
    with pytest.raises((errors.PeerTimeout, errors.DeadlockError)):
        run_pair(name, Fabric("rc", broken_links=((0, 1),)), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "ib"},
        {"kind": "rc", "queue_depth": 0},
        {"kind": "rc", "queue_pairs": 0},
        {"kind": "rc", "ranks_per_node": 3},
        {"kind": "srd", "broken_links": ((0, 9),)},
    ],
)
def test_impossible_fabrics_are_refused(arguments):
    with pytest.raises(errors.ArgumentError):
        ep_lib.spawn(lambda rank: None, 4, "emulator", fabric=Fabric(**arguments))
    with pytest.raises(errors.ArgumentError, match="'p2p', 'rc', 'srd'"):
        ep_lib.spawn(lambda rank: None, 2, "emulator", fabric="roce")

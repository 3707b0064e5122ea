"""A ring of messages between all ranks, and a program that notices when one does not arrive."""

from __future__ import annotations

from typing import Any

import numpy as np

import ep_lib
from ep_lib.errors import PeerTimeout

SOURCE = r"""
#include <ep/net.cuh>
#include <ep/wait.cuh>

// In every round a message to the next rank, and one from the previous; `rounds` counts those that came.
template <bool kQuiet>
__device__ void ring(uint64_t* data, uint64_t* source, uint64_t* signal, int* rounds, int n) {
    const int ranks = ep::num_ranks(), next = (ep::rank() + 1) % ranks, previous = (ep::rank() + ranks - 1) % ranks;
    for (int round = 1; round <= n; ++round) {
        ep::net_put_signal_nbi(data + 16 * round, source, 64, signal, 1, next, 0);
        if (kQuiet) ep::net_quiet(next, 0);
        if (!ep::wait_until_ge(signal, round, {ep::kPhaseSignal, previous, round})) return;
        *rounds = round;
    }
}
extern "C" __global__ void patient(uint64_t* d, uint64_t* s, uint64_t* f, int* r, int n) { ring<false>(d, s, f, r, n); }
extern "C" __global__ void quiet(uint64_t* d, uint64_t* s, uint64_t* f, int* r, int n) { ring<true>(d, s, f, r, n); }
extern "C" __global__ void stores(uint64_t* signal, int n) {
    const int next = (ep::rank() + 1) % ep::num_ranks();
    for (int i = 1; i <= n; ++i) {
        ep::st_release_sys_u64(ep::peer_ptr(signal, next), i);
        while (ep::ld_acquire_sys_u64(signal) < i) {
        }
    }
}
"""


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_source(SOURCE, name, filename="fault_injection_test.cu")


def launch(rank: ep_lib.Rank, name: str, rounds: int) -> Any:
    data, source, signal = (rank.symmetric(words, np.uint64) for words in (1024, 8, 1))
    came = rank.to_device(np.zeros(1, np.int32))
    kernel(name).launch(rank, 1, 1, data, source, signal, came, rounds)
    return came


def noticing(rank: ep_lib.Rank, name: str, rounds: int) -> Any:
    """How many messages came, and the PeerTimeout if one did not: the program goes on in either case."""
    came = launch(rank, name, rounds)
    try:
        rank.synchronize()
    except PeerTimeout as error:
        return int(came[0]), error
    return int(came[0]), None

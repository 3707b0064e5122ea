"""Programs around tutorial_kernels/03_ibgda_shim*.cu and the pieces of <ep/ibgda_shim.cuh>."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ep_lib import Fabric, Kernel, Rank, ibgda
from support import ROOT

Array = np.ndarray[Any, Any]
TUTORIAL = ROOT / "tutorial_kernels"
FILES = ("03_ibgda_shim", "03_ibgda_shim_broken", "03_ibgda_shim_debug")
BYTES, MESSAGES, CHANNELS, CHUNK = 200, 5, 2, 2
FABRICS = [
    None,
    *(Fabric(kind) for kind in ("rc", "srd")),
    *(Fabric(kind, ranks_per_node=2) for kind in ("rc", "srd")),
    *(Fabric(kind, ranks_per_node=2, p2p=False, queue_depth=2) for kind in ("rc", "srd")),
]


def name_of(fabric: Fabric | None) -> str:
    if fabric is None:
        return "p2p"
    return f"{fabric.kind}-{fabric.ranks_per_node}{'' if fabric.p2p else '-without-p2p'}"


any_fabric = pytest.mark.parametrize("fabric", FABRICS, ids=name_of)


@functools.lru_cache(maxsize=32)
def kernel(name: str) -> Kernel:
    for file in FILES:
        found = Kernel.from_file(TUTORIAL / f"{file}.cu", name)
        if f" {name}(" in found.source:
            return found
    raise AssertionError(name)


def data_of(rank: int, size: int) -> Array:
    return np.random.default_rng(rank).integers(1, 256, size, np.uint8)


def ring(rank: Rank, send: str, receive: str) -> bool:
    """Every rank sends to the next rank and reads what the previous one sent. Is it right?"""
    next_rank, previous = (rank.rank + 1) % rank.world_size, (rank.rank - 1) % rank.world_size
    blocks = CHANNELS if "channel" in send else 1
    size = blocks * MESSAGES * BYTES
    inbox, outbox, staging = (rank.symmetric(size, np.uint8) for _ in range(3))
    counters, signals = rank.symmetric(CHANNELS, np.uint32), rank.symmetric(MESSAGES, np.uint64)
    out = rank.to_device(np.zeros(size, np.uint8))
    outbox[:] = rank.xp.asarray(data_of(rank.rank, size))
    ibgda.init_efa_device_state(rank, num_channels=3)
    if "channel" in send:
        kernel(send).launch(rank, blocks, 32, inbox, outbox, BYTES, MESSAGES, CHUNK, counters, next_rank)
        kernel(receive).launch(rank, blocks, 64, counters, MESSAGES, CHUNK, inbox, BYTES, out, previous)
        return np.array_equal(rank.to_host(out), data_of(previous, size))
    flags = signals if send == "send_with_signals" else counters
    sources = (staging, outbox) if "staged" in send else (outbox,)
    kernel(send).launch(rank, 1, 32, inbox, *sources, BYTES, MESSAGES, flags, next_rank)
    kernel(receive).launch(rank, 1, 32, flags, MESSAGES, inbox, BYTES, out, previous)
    return np.array_equal(rank.to_host(out), data_of(previous, size))


LADDER = [
    ("send_staged", "receive_messages"),
    ("send_batched", "receive_messages"),
    ("send_with_signals", "receive_each"),
    ("channel_send", "channel_receive"),
]


def one_put(rank: Rank, size: int) -> Array:
    inbox, outbox = rank.symmetric(size + 1, np.uint8), rank.symmetric(size + 1, np.uint8)
    outbox[:] = rank.xp.asarray(data_of(rank.rank, size + 1))
    ibgda.init_internode(rank)
    kernel("put_message").launch(rank, 2, 64, inbox, outbox, size, rank.world_size - 1 - rank.rank)
    rank.barrier()
    outbox[:] = 0  # quiet has said that the NIC is done with it
    return rank.to_host(inbox)


def counted(rank: Rank, name: str) -> list[int]:
    """Every rank adds 5 from 2 blocks to rank 0's counters."""
    counters = rank.symmetric(rank.world_size, np.uint32)
    ibgda.init_efa_device_state(rank)
    kernel(name).launch(rank, 2, 32, counters, 5, 0)
    rank.barrier()
    return [int(count) for count in rank.to_host(counters)]


PIECES = r"""
#include <ep/ibgda_shim.cuh>
extern "C" __global__ void look(uint64_t* mine, int64_t* out) {
    const auto* state = ibgda_get_state();
    out[0] = state->num_rc_per_pe;
    out[1] = state->num_devices_initialized;
    for (int peer = 0; peer < ep::num_ranks(); ++peer)
        out[2 + peer] = nvshmemi_get_p2p_ptr(reinterpret_cast<uint64_t>(mine), ep::rank(), peer);
}
extern "C" __global__ void add(int* counters, int peer) {
    nvshmemi_ibgda_amo_nonfetch_add(counters, -3, peer, 1);
    nvshmemi_ibgda_amo_nonfetch_add(counters + 1, 4, peer, 1, true);  // a local copy, whatever pe says
    nvshmemi_ibgda_quiet(peer, 1);
}
extern "C" __global__ void fetch(uint64_t* to, uint64_t* from, size_t bytes, int peer) {
    ep::net_get_nbi(to, from, bytes, peer);
    ep::net_quiet(peer);
}
extern "C" __global__ void fenced(uint64_t* inbox, uint64_t* outbox, size_t bytes, uint64_t* flag, int peer) {
    ep::net_put_nbi(inbox, outbox, bytes, peer, 0);
    ep::net_fence(peer);
    ep::net_atomic_add_u64_nbi(flag, 1, peer, 1);
    ep::net_quiet();
}
extern "C" __global__ void two_puts(uint64_t* inbox, uint64_t* outbox, int words, int peer, int quiet_pe,
                                    int quiet_qp) {
    const auto address = [](const uint64_t* p) { return reinterpret_cast<uint64_t>(p); };
    const int lane = ep::lane_id();
    nvshmemi_ibgda_put_nbi_warp(address(inbox), address(outbox), 8 * words, peer, 0, lane, 0);
    nvshmemi_ibgda_put_nbi_warp(address(inbox + words), address(outbox + words), 8 * words, peer, 1, lane, 0);
    if (lane == 0) nvshmemi_ibgda_quiet(quiet_pe, quiet_qp);
    __syncwarp();
    for (int i = lane; i < 2 * words; i += ep::kWarpSize) outbox[i] = 0;
}
extern "C" __global__ void await(uint64_t* flag, uint64_t* inbox, uint64_t* out, int words, int peer) {
    if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1})) return;
    for (int i = 0; i < words; ++i) out[i] = inbox[i];
}
extern "C" __global__ void one_of_each(uint64_t* mine, int what, int peer, int* after) {
    const uint64_t address = reinterpret_cast<uint64_t>(mine);
    if (what == 0) *after = ibgda_get_state()->num_rc_per_pe * ibgda_get_state()->num_devices_initialized;
    if (what == 1) nvshmemi_ibgda_put_nbi_warp(address, address, 8, peer, 0, ep::lane_id(), 0);
    if (what == 2 && ep::lane_id() == 0) nvshmemi_ibgda_amo_nonfetch_add(mine, 1, peer, 0);
    if (what == 3 && ep::lane_id() == 0) nvshmemi_ibgda_quiet(peer, 0);
    if (what == 4) nvshmemi_get_p2p_ptr(address, ep::rank(), peer);
}
"""


@functools.lru_cache(maxsize=8)
def piece(name: str) -> Kernel:
    return Kernel.from_source(PIECES, name, filename="pieces.cu")


def look(rank: Rank) -> tuple[list[int], list[int]]:
    mine, out = rank.symmetric(4, np.uint64), rank.to_device(np.zeros(2 + rank.world_size, np.int64))
    ibgda.init_efa_device_state(rank, 7, 1)
    piece("look").launch(rank, 1, 1, mine, out)
    rank.synchronize()
    ibgda.init_efa_device_state(rank, 5, num_devices=2)  # again: later launches see the new numbers
    piece("look").launch(rank, 1, 1, mine[1:], out)
    return rank.to_host(out).tolist(), [rank.peer_address(mine[1:], peer) for peer in range(rank.world_size)]


def adds(rank: Rank) -> list[int]:
    counters = rank.symmetric(3, np.int32, fill=10)
    ibgda.init_efa_device_state(rank)
    piece("add").launch(rank, 1, 1, counters, (rank.rank + 1) % rank.world_size)
    rank.barrier()
    values: list[int] = rank.to_host(counters).tolist()
    return values


def get_and_fence(rank: Rank) -> tuple[bool, bool]:
    peer, words = 1 - rank.rank, 40
    theirs = data_of(peer, 8 * words).view(np.uint64)
    inbox, outbox, copy = (rank.symmetric(words, np.uint64) for _ in range(3))
    flag, out = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(words, np.uint64))
    outbox[:] = rank.xp.asarray(data_of(rank.rank, 8 * words).view(np.uint64))
    rank.barrier()
    piece("fetch").launch(rank, 1, 1, copy, outbox, 8 * words, peer)
    piece("fenced").launch(rank, 1, 1, inbox, outbox, 8 * words, flag, peer)
    piece("await").launch(rank, 1, 1, flag, inbox, out, words, peer)
    return np.array_equal(rank.to_host(copy), theirs), np.array_equal(rank.to_host(out), theirs)

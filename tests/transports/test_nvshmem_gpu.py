"""ep::net_* and the IBGDA/EFA shim on GPUs: the same kernels over stores (to memory of CUDA IPC and of NCCL), NVSHMEM
(by every build route), NIXL and the CPU's proxy."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import TESTS
from support import ibgda_shim as shim

import ep_lib
from ep_lib import Fabric, Kernel, Rank, spawn
from ep_lib.errors import PeerTimeout
from ep_lib.jit import nvrtc, toolkit
from ep_lib.transports.nccl import library as nccl
from ep_lib.transports.nixl import build as nixl
from ep_lib.transports.nvshmem import build as nvshmem
from ep_lib.transports.nvshmem.library import NvshmemLibrary

TRANSPORTS = ("p2p", *(f"nvshmem:{route}" for route in nvshmem.ROUTES), "nixl", "proxy", "nccl")
SOURCE = r"""
#include <ep/ibgda_shim.cuh>
// Data, quiet, then a signal by itself: rank by rank, with a fence instead of the quiet where it is asked for.
extern "C" __global__ void put_then_add(char* inbox, const char* outbox, size_t bytes, uint64_t* signal, int fence,
                                        int peer) {
    if (threadIdx.x != 0) return;
    ep::net_put_nbi(inbox, outbox, bytes, peer);
    if (fence) ep::net_fence(peer); else ep::net_quiet(peer);
    ep::net_atomic_add_u64_nbi(signal, 1, peer);
    ep::net_quiet();
}
// All threads put, then one signals.
extern "C" __global__ void put_by_block(char* inbox, const char* outbox, size_t bytes, uint64_t* signal, int peer) {
    ep::net_put_nbi_block(inbox, outbox, bytes, peer);
    __syncthreads();
    if (threadIdx.x != 0) return;
    ep::net_quiet(peer);
    ep::net_atomic_add_u64_nbi(signal, 1, peer);
    ep::net_quiet(peer);
}
extern "C" __global__ void put_signal(char* inbox, const char* outbox, size_t bytes, uint64_t* signal, uint64_t value,
                                      int add, int peer) {
    if (threadIdx.x != 0) return;
    ep::net_put_signal_nbi(inbox, outbox, bytes, signal, value, peer, 0,
                           add ? ep::NetSignal::kAdd : ep::NetSignal::kSet);
    ep::net_quiet(peer);
}
extern "C" __global__ void copy_when(const uint64_t* signal, uint64_t expected, const char* inbox, size_t bytes,
                                     char* out, int peer) {
    if (!ep::wait_until_ge_block(signal, expected, {ep::kPhaseSignal, peer, -1})) return;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = inbox[i];
}
extern "C" __global__ void add_both(uint32_t* small, uint64_t* large, int times, int target) {
    for (int i = 0; i < times; ++i) {
        ep::net_atomic_add_u32_nbi(small, 3, target);
        ep::net_atomic_add_u64_nbi(large, 1ull << 40, target);
    }
    ep::net_quiet();
}
extern "C" __global__ void who(uint64_t* mine, int64_t* out) {
    out[0] = ep::reachable(1 - ep::rank()), out[1] = ep::num_queue_pairs();
    *ep::peer_ptr(mine, 1 - ep::rank()) = 70 + ep::rank();  // plain stores work beside the network
}
"""
BYTES = 100_003


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name, filename="test_nvshmem_gpu.cu")


def needs(transport: str) -> None:
    kind, _, route = transport.partition(":")
    reason = {
        "p2p": lambda: None,
        "proxy": lambda: None,
        "nvshmem": lambda: nvshmem.unusable_reason(route or "whole"),
        "nixl": nixl.unusable_reason,
        "nccl": nccl.unusable_reason,
    }[kind]()
    if reason:
        pytest.skip(reason)


def compile_all(transport: str) -> None:
    """Every kernel at once, on all CPUs: one after the other they take longer than all the rest."""
    import cupy

    major, minor = (cupy.cuda.runtime.deviceGetAttribute(which, 0) for which in (75, 76))
    own = [kernel(name) for name in ("put_then_add", "put_by_block", "put_signal", "copy_when", "add_both", "who")]
    tutorial = [shim.kernel(name) for name in {name for pair in shim.LADDER for name in pair}]
    tutorial += [shim.kernel("put_message"), shim.kernel("count_by_source")]
    pieces = [shim.piece(name) for name in ("fetch", "fenced", "await", "add", "look")]
    for first in (own[0], tutorial[0]):  # reads the headers that all share
        compile_one(first, f"sm_{major}{minor}", transport)
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(compile_one, k, f"sm_{major}{minor}", transport) for k in own + tutorial + pieces]:
            done.result()


def compile_one(what: Kernel, arch: str, transport: str) -> None:
    kind, _, route = transport.partition(":")
    if kind == "nvshmem":
        nvshmem.compile_cubin(what, arch, route)
    elif kind == "nixl":
        nixl.compile_cubin(what, arch)
    else:
        nvrtc.compile_cubin(what, arch, toolkit.PACKAGE / "transports" / ("p2p" if kind == "nccl" else kind))


def everything(rank: Rank) -> dict[str, Any]:
    """What each kernel did, by name; True where it is right."""
    peer, right = 1 - rank.rank, {}
    inbox, outbox, out = (rank.symmetric(BYTES, np.uint8) for _ in range(3))
    outbox[:] = rank.xp.asarray(shim.data_of(rank.rank, BYTES))
    signal, large = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    small, seen = rank.symmetric(1, np.uint32), rank.to_device(np.zeros(2, np.int64))

    def arrived(expected: int) -> bool:
        kernel("copy_when").launch(rank, 1, 128, signal, expected, inbox, BYTES, out, peer)
        done = np.array_equal(rank.to_host(out), shim.data_of(peer, BYTES))
        rank.barrier()
        inbox[:] = 0
        out[:] = 0
        rank.barrier()
        return done

    rank.barrier()
    for way, name in enumerate(("put, quiet, add", "put, fence, add")):
        kernel("put_then_add").launch(rank, 1, 32, inbox, outbox, BYTES, signal, way, peer)
        right[name] = arrived(way + 1)
    kernel("put_by_block").launch(rank, 1, 256, inbox, outbox, BYTES, signal, peer)
    right["put by a block, quiet, add"] = arrived(3)
    kernel("put_signal").launch(rank, 1, 32, inbox, outbox, BYTES, signal, 5, 1, peer)
    right["put with an added signal"] = arrived(8)
    kernel("put_signal").launch(rank, 1, 32, inbox, outbox, BYTES, signal, 100, 0, peer)
    right["put with a set signal"] = arrived(100)
    kernel("add_both").launch(rank, 4, 32, small, large, 5, 0)
    rank.barrier()
    sums = [640 * 2 * 3, 640 * 2 << 40] if rank.rank == 0 else [0, 0]
    right["adds of 32 and 64 bits"] = [int(rank.to_host(small)[0]), int(rank.to_host(large)[0])] == sums
    kernel("who").launch(rank, 1, 1, large, seen)
    rank.barrier()
    right["peers in reach of stores"] = rank.to_host(seen).tolist()[0] == 1 and int(rank.to_host(large)[0]) == 70 + peer
    right["transport"] = rank._backend.transport  # type: ignore[attr-defined]

    for send, receive in shim.LADDER:
        right[f"tutorial {send}"] = shim.ring(rank, send, receive)
    sent = shim.one_put(rank, 3000)
    right["tutorial put_message"] = np.array_equal(sent[:3000], shim.data_of(1 - rank.rank, 3001)[:3000])
    right["tutorial count_by_source"] = shim.counted(rank, "count_by_source") == [[10] * 2, [0] * 2][rank.rank]
    right["gets and fences"] = shim.get_and_fence(rank) == (True, True)
    right["atomics of the shim"] = shim.adds(rank) == [7, 14, 10]
    addresses = shim.look(rank)
    right["P2P pointers of the shim"] = addresses[0] == [5, 2, *addresses[1]]
    return right


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_operation_and_the_ladder_of_the_shim(transport: str) -> None:
    needs(transport)
    compile_all(transport)
    results = spawn(everything, 2, "cuda", heap_bytes=64 << 20, transport=transport)
    for rank, right in enumerate(results):
        assert right.pop("transport") == transport.partition(":")[0]
        assert [name for name, is_right in right.items() if not is_right] == [], f"rank {rank}"


def to_everybody(rank: Rank) -> bool:
    """Each rank puts its number into its slot at every rank, by one thread or by a block, and counts there."""
    slots, mine = rank.symmetric((rank.world_size, 256), np.uint8), rank.symmetric(256, np.uint8)
    signal = rank.symmetric(1, np.uint64)
    mine[:] = 10 + rank.rank
    rank.barrier()
    for peer in range(rank.world_size):
        if peer % 2:
            kernel("put_by_block").launch(rank, 1, 64, slots[rank.rank], mine, 256, signal, peer)
        else:
            kernel("put_signal").launch(rank, 1, 32, slots[rank.rank], mine, 256, signal, 1, 1, peer)
    rank.barrier()
    expected = np.repeat(np.arange(10, 10 + rank.world_size, dtype=np.uint8), 256).reshape(-1, 256)
    return np.array_equal(rank.to_host(slots), expected) and int(rank.to_host(signal)[0]) == rank.world_size


@pytest.mark.gpu(count=4)
@pytest.mark.parametrize("transport", ["p2p", "nvshmem", "nixl", "proxy", "nccl"])
def test_four_ranks_reach_each_other_and_themselves(transport: str) -> None:
    needs(transport)
    assert spawn(to_everybody, 4, "cuda", heap_bytes=64 << 20, transport=transport) == [True] * 4


def test_the_same_on_the_emulator() -> None:
    for fabric in (None, Fabric("srd", ranks_per_node=2)):
        assert spawn(to_everybody, 4, "emulator", fabric=fabric) == [True] * 4


def waits_in_vain(rank: Rank) -> str:
    signal, inbox = rank.symmetric(1, np.uint64), rank.symmetric(8, np.uint8)
    kernel("copy_when").launch(rank, 1, 32, signal, 3, inbox, 8, inbox, 1 - rank.rank)
    try:
        rank.synchronize()
    except PeerTimeout as error:
        return f"{error.peer} {error.seen} {error.expected}"
    return "nothing"


@pytest.mark.gpu(count=2, own=True)
def test_a_wait_over_nvshmem_has_its_limit_and_the_world_closes() -> None:
    needs("nvshmem")
    assert spawn(waits_in_vain, 2, "cuda", timeout=2, transport="nvshmem") == ["1 0 3", "0 0 3"]


def shares_nvshmem(rank: Rank) -> list[int]:
    """Starts NVSHMEM for itself, as nvshmem4py does, and lends it to another Rank."""
    mine = NvshmemLibrary(nvshmem.find())
    mine.start(0, 1, mine.unique_id())
    with ep_lib.init("cuda", heap_bytes=1 << 20, transport="nvshmem") as lent:
        signal = lent.symmetric(1, np.uint64)
        kernel("add_both").launch(lent, 1, 1, lent.symmetric(1, np.uint32), signal, 5, 0)
        lent.synchronize()
        added = int(signal.get()[0] >> 40)
    address = mine.allocate(1 << 20)
    mine.free(address)
    mine.stop()
    return [added, address != 0]


@pytest.mark.gpu
def test_an_nvshmem_of_the_programs_own_is_adopted() -> None:
    needs("nvshmem")
    assert spawn(shares_nvshmem, 1, "cuda") == [[5, True]]


PROGRAM = """
import os, sys
sys.path.insert(0, {tests!r})
import ep_lib
from transports import test_nvshmem_gpu
with ep_lib.init("cuda", heap_bytes=64 << 20, transport="nvshmem") as rank:
    right = test_nvshmem_gpu.everything(rank)
    wrong = [name for name in right if not right[name]]
    line = f"rank {{rank.rank}} of {{rank.world_size}} {{right['transport']}} wrong: {{wrong}}\\n"
    os.write(1, line.encode())  # at once: pieces of two ranks' lines could mix
"""


@pytest.mark.gpu(count=2, own=True)
def test_nvshmem_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    needs("nvshmem")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=str(TESTS)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} of 2 nvshmem wrong: []" for rank in range(2)], done.stdout + done.stderr

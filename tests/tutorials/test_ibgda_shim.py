"""<ep/ibgda_shim.cuh> and tutorial_kernels/03_ibgda_shim*.cu: right on every fabric, broken where they say so."""

from __future__ import annotations

import numpy as np
import pytest
from support import Spmd
from support.ibgda_shim import (
    LADDER,
    adds,
    any_fabric,
    counted,
    data_of,
    get_and_fence,
    kernel,
    look,
    one_put,
    piece,
    ring,
)
from support.refusals import refused

from ep_lib import Fabric, Kernel, Rank, check, ibgda, spawn
from ep_lib.errors import ArgumentError, EpError, KernelFault, RankMismatchError
from ep_lib.jit import device_state

# ---- the ladder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("send", "receive"), LADDER)
@any_fabric
def test_messages_arrive_on_every_fabric(send: str, receive: str, fabric: Fabric | None) -> None:
    for seed in range(4):
        ranks = 2 + 2 * (seed % 2)
        right = spawn(ring, ranks=ranks, backend="emulator", seed=seed, fabric=fabric, args=(send, receive))
        assert right == [True] * ranks, f"seed {seed}"


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize(("send", "receive"), LADDER)
def test_messages_arrive_on_gpus(send: str, receive: str) -> None:
    assert spawn(ring, ranks=2, backend="cuda", args=(send, receive)) == [True, True]


@pytest.mark.extended(after=1)
@any_fabric
def test_a_put_is_there_after_quiet_and_a_barrier(fabric: Fabric | None) -> None:
    for seed in range(12):
        size = (0, 1, 17, 3000)[seed % 4]
        for rank, got in enumerate(spawn(one_put, ranks=4, backend="emulator", seed=seed, fabric=fabric, args=(size,))):
            expected = np.append(data_of(3 - rank, size + 1)[:size], np.uint8(0))
            assert np.array_equal(got, expected), f"seed {seed}, rank {rank}"


@pytest.mark.extended(after=1)
@any_fabric
def test_counters_with_one_kind_of_writer_lose_nothing(fabric: Fabric | None) -> None:
    for seed in range(10):
        counts = spawn(counted, ranks=4, backend="emulator", seed=seed, fabric=fabric, args=("count_by_source",))
        assert counts == [[10] * 4, *[[0] * 4] * 3], f"seed {seed}"


# ---- the pieces of the shim ------------------------------------------------------------------------------------------


def test_state_and_p2p_pointers_everywhere_p2p(spmd: Spmd) -> None:
    for out, addresses in spmd(look, 2):
        assert out == [5, 2, *addresses]


@any_fabric
def test_p2p_pointers_reach_the_node(fabric: Fabric | None) -> None:
    for rank, (out, addresses) in enumerate(spawn(look, ranks=4, backend="emulator", fabric=fabric)):
        for peer, pointer in enumerate(out[2:]):
            near = fabric is None or peer == rank or (fabric.p2p and rank // fabric.ranks_per_node == peer // 2)
            near = near and not (fabric is not None and fabric.ranks_per_node == 1 and peer != rank)
            assert pointer == (addresses[peer] if near else 0)


@any_fabric
def test_atomics_add_32_bits_and_negative_numbers(fabric: Fabric | None) -> None:
    for seed in range(5):
        assert spawn(adds, ranks=4, backend="emulator", seed=seed, fabric=fabric) == [[7, 14, 10]] * 4


def test_atomics_to_oneself(spmd: Spmd) -> None:
    assert spmd(adds, 1) == [[7, 14, 10]]


@any_fabric
def test_gets_arrive_and_fences_order_all_queue_pairs(fabric: Fabric | None) -> None:
    for seed in range(10):
        done = spawn(get_and_fence, ranks=2, backend="emulator", seed=seed, fabric=fabric)
        assert done == [(True, True)] * 2, f"seed {seed}"


def reused_after_one_quiet(rank: Rank, quiet_pe: int, quiet_qp: int) -> tuple[bool, bool]:
    """Rank 0 puts one half to rank 1 on queue pair 0 and the other on 1, waits for one of them, and reuses both."""
    inbox, outbox = rank.symmetric(80, np.uint64), rank.symmetric(80, np.uint64)
    outbox[:] = rank.xp.asarray(data_of(rank.rank, 640).view(np.uint64))
    ibgda.init_efa_device_state(rank)
    rank.barrier()
    if rank.rank == 0:
        piece("two_puts").launch(rank, 1, 32, inbox, outbox, 40, 1, quiet_pe, quiet_qp)
    rank.barrier()
    right = rank.to_host(inbox) == data_of(0, 640).view(np.uint64)
    return bool(right[:40].all()), bool(right[40:].all())


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("fabric", "pe", "queue_pair", "waited_for"),
    [("rc", 1, 0, {0}), ("rc", 1, 1, {1}), ("rc", 2, 0, set()), ("srd", 2, 3, {0, 1}), (None, 1, 1, {0, 1})],
)
def test_quiet_waits_for_one_queue_pair_on_rc_and_for_everything_on_srd(
    fabric: str | None, pe: int, queue_pair: int, waited_for: set[int]
) -> None:
    args = (pe, queue_pair)
    runs = [spawn(reused_after_one_quiet, 3, "emulator", seed=s, fabric=fabric, args=args)[1] for s in range(40)]
    assert {half for half in range(2) if all(run[half] for run in runs)} == waited_for


# ---- without the host side -------------------------------------------------------------------------------------------
def forgotten(rank: Rank, what: int) -> tuple[str, list[int]]:
    mine, after = rank.symmetric(2, np.uint64, fill=3), rank.to_device(np.zeros(1, np.int32))
    mine[0] = rank.rank
    rank.barrier()
    message = ""
    piece("one_of_each").launch(rank, 1, 32, mine, what, (rank.rank + 1) % rank.world_size, after)
    try:
        rank.synchronize()
    except KernelFault as error:
        message = str(error)
    rank.barrier()
    return message, [*rank.to_host(mine).tolist(), *rank.to_host(after).tolist()]


@pytest.mark.parametrize("what", range(5))
@pytest.mark.parametrize("fabric", [None, "srd"])
def test_every_function_says_which_call_is_missing(what: int, fabric: str | None) -> None:
    results = spawn(forgotten, ranks=2, backend="emulator", fabric=fabric, args=(what,))
    for rank, (message, values) in enumerate(results):
        assert f"rank {rank}: a kernel used <ep/ibgda_shim.cuh>" in message
        assert "call ep_lib.ibgda.init_efa_device_state(rank, num_channels, num_devices)" in message
        assert values == [rank, 3, 1 if what == 0 else 0], "nothing moved, and no division by zero"


def send_without_state(rank: Rank) -> None:
    data, counter = rank.symmetric(64, np.uint8), rank.symmetric(1, np.uint32)
    out = rank.to_device(np.zeros(64, np.uint8))
    if rank.rank == 0:
        kernel("send_batched").launch(rank, 1, 32, data, data, 64, 1, counter, 1)
    else:
        kernel("receive_messages").launch(rank, 1, 32, counter, 1, data, 64, out, 0)
    rank.synchronize()


@pytest.mark.parametrize("fabric", [None, "rc"])
def test_the_missing_call_is_named_though_the_peer_waits(fabric: str | None) -> None:
    with pytest.raises(EpError, match="init_efa_device_state"):
        spawn(send_without_state, ranks=2, backend="emulator", fabric=fabric, timeout=20)


def no_such_peer(rank: Rank) -> None:
    mine, after = rank.symmetric(2, np.uint64), rank.to_device(np.zeros(1, np.int32))
    ibgda.init_efa_device_state(rank)
    piece("one_of_each").launch(rank, 1, 32, mine, 1, 9, after)
    rank.synchronize()


@pytest.mark.parametrize("fabric", [None, "srd"])
def test_a_peer_that_does_not_exist(fabric: str | None) -> None:
    with pytest.raises(KernelFault, match="rank 9"):
        spawn(no_such_peer, ranks=2, backend="emulator", fabric=fabric)


def bad_numbers(rank: Rank) -> None:
    for *numbers, says in (
        (0, 1, "num_channels is 0"),
        (16, -1, "num_devices is -1"),
        (2.5, 1, "2.5"),
        (True, 1, ""),
        ("16", 1, ""),
        (2**20, 2**20, "1048576 x 1048576"),
    ):
        refused(lambda numbers=numbers: ibgda.init_efa_device_state(rank, *numbers), ArgumentError, says)


def test_bad_numbers_are_refused(spmd: Spmd) -> None:
    spmd(bad_numbers, 1)


def disagree(rank: Rank) -> None:
    ibgda.init_efa_device_state(rank, num_channels=4 + rank.rank)


def test_ranks_that_disagree(spmd: Spmd) -> None:
    with pytest.raises(RankMismatchError, match="rank 0: 4 and 1; rank 1: 5 and 1"):
        spmd(disagree, 2)


# ---- the debugging kernels -------------------------------------------------------------------------------------------
def debugged(rank: Rank, p2p: bool) -> int:
    remote, local = rank.symmetric(4096, np.uint8), rank.symmetric(4096, np.uint8, fill=rank.rank + 1)
    totals = rank.to_device(np.zeros(2, np.int64))
    ibgda.init_efa_device_state(rank, num_channels=16, num_devices=2)
    kernel("print_ibgda_state").launch(rank, 1, 32)
    kernel("print_p2p").launch(rank, 1, 32, remote)
    found = rank.to_device(np.full(3, -1, np.int32))
    kernel("find_p2p").launch(rank, 1, 3, remote, found)
    kernel("benchmark_put").launch(rank, 1, 32, remote, local, 4096, 1 - rank.rank, 1000, totals)
    rank.barrier()
    assert set(rank.to_host(remote).tolist()) == {2 - rank.rank}
    assert rank.to_host(found).tolist() == [*(int(p2p or peer == rank.rank) for peer in range(2)), -1]
    return int(rank.to_host(totals)[0])


@pytest.mark.parametrize(("fabric", "way"), [(None, "P2P"), ("srd", "RDMA")])
def test_the_debugging_kernels(fabric: str | None, way: str, capfd: pytest.CaptureFixture[str]) -> None:
    cycles = spawn(debugged, ranks=2, backend="emulator", fabric=fabric, args=(way == "P2P",))
    assert all(cycle > 1000 for cycle in cycles)
    said = capfd.readouterr().out
    for rank in range(2):
        assert f"rank {rank}: num_rc_per_pe=16 num_devices_initialized=2" in said
        assert f"rank {rank} -> rank {1 - rank}: {way}" in said and f"rank {rank} -> rank {rank}: P2P" in said
        assert f"4096 bytes to rank {rank}: " in said


def test_a_gpu_that_is_out_of_reach_is_named() -> None:
    """No machine of ours has such GPUs: this is what the record of <ep/net.cuh> becomes."""
    record = device_state.FaultRecord(device_state.FAULT_TRANSPORT, 0, 3, "write", -1, 0, 0)
    error = device_state.to_error(record)
    assert isinstance(error, KernelFault)
    assert "rank 0: a network operation to rank 3 was refused" in str(error) and "take transport='nvshmem'" in str(
        error
    )


def program(rank: Rank, send: str, receive: str) -> None:
    if receive:
        ring(rank, send, receive)
    else:
        counted(rank, send)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "receive", "fabric"),
    [
        ("channel_send_trusts_the_queue_pair", "channel_receive", "srd"),
        ("count_together", "", "srd"),
        ("count_together", "", "rc"),
        ("send_staged_reuses_source", "receive_messages", "rc"),
        ("send_staged_reuses_source", "receive_messages", "srd"),
        ("send_batched_quiet_first", "receive_messages", None),
        ("send_batched_quiet_first", "receive_messages", "rc"),
        ("send_batched_quiet_first", "receive_messages", "srd"),
    ],
)
def test_every_mistake_is_found(send: str, receive: str, fabric: str | None) -> None:
    report = check(lambda rank: program(rank, send, receive), ranks=2, fabric=fabric, seeds=20)
    assert not report.ok
    assert "03_ibgda_shim" in str(report)


@pytest.mark.slow
def test_what_infiniband_forgives_is_not_found_there() -> None:
    trusting = ("channel_send_trusts_the_queue_pair", "channel_receive")
    assert check(lambda rank: program(rank, *trusting), ranks=2, fabric="rc", seeds=20).ok


# A put on queue pair 0; on which one do the quiet and the count wait and go? Then the source is used again.
QUEUE_PAIRS = """
#include <ep/ibgda_shim.cuh>
#include <ep/signal.cuh>
extern "C" __global__ void send(uint8_t* inbox, uint8_t* outbox, int bytes, uint32_t* count, int quiet_qp,
                                int count_qp) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    nvshmemi_ibgda_put_nbi_warp(reinterpret_cast<uint64_t>(inbox), reinterpret_cast<uint64_t>(outbox), bytes, peer, 0,
                                ep::lane_id(), 0);
    if (ep::lane_id() == 0) {
        nvshmemi_ibgda_quiet(peer, quiet_qp);
        nvshmemi_ibgda_amo_nonfetch_add(count, 1, peer, count_qp);
    }
    __syncwarp();
    outbox[ep::lane_id()] = 0;
}
extern "C" __global__ void receive(const uint8_t* inbox, int bytes, uint32_t* count, uint8_t* out) {
    if (ep::lane_id() == 0) {
        while (ep::ld_acquire_sys_u32(count) == 0) {
        }
    }
    __syncwarp();
    for (int i = ep::lane_id(); i < bytes; i += 32) out[i] = inbox[i];
}
"""


def queue_pairs(rank: Rank, quiet_qp: int, count_qp: int) -> None:
    inbox, outbox, out = (rank.symmetric(300, np.uint8) for _ in range(3))
    count = rank.symmetric(1, np.uint32)
    ibgda.init_efa_device_state(rank, num_channels=3)
    send, receive = (Kernel.from_source(QUEUE_PAIRS, name, filename="queue_pairs.cu") for name in ("send", "receive"))
    send.launch(rank, 1, 32, inbox, outbox, 300, count, quiet_qp, count_qp)
    receive.launch(rank, 1, 32, inbox, 300, count, out)


_OVERTAKES = ("signal overtakes data", "one more quiet for queue pair 0 in line 10 of queue_pairs.cu")
_REUSED = ("source reused", "put a quiet, and __syncwarp() behind it, between line 7 and line 14 of queue_pairs.cu")


@pytest.mark.slow
@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("fabric", "quiet_qp", "count_qp", "wrong"),
    [
        ("rc", 0, 0, set()),
        ("rc", 0, 1, set()),
        ("rc", 1, 0, {_REUSED}),  # the queue pair itself keeps the count behind the data
        ("rc", 1, 1, {_OVERTAKES, _REUSED}),
        ("srd", 0, 1, set()),
        ("srd", 1, 1, set()),  # EFA's quiet waits for everything
    ],
)
def test_a_quiet_waits_for_its_own_queue_pair_only(
    fabric: str, quiet_qp: int, count_qp: int, wrong: set[tuple[str, str]]
) -> None:
    report = check(queue_pairs, ranks=2, fabric=fabric, seeds=20, args=(quiet_qp, count_qp))
    assert {(f.kind, f.place) for f in report.findings} == wrong, str(report)

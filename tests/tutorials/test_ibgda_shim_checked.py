"""A finding of the checker on each mistake of tutorial_kernels/03_ibgda_shim*.cu."""

from __future__ import annotations

import numpy as np
import pytest
from support.ibgda_shim import counted, ring

from ep_lib import Kernel, Rank, check, ibgda

pytestmark = pytest.mark.slow

SEEDS = 20


def program(rank: Rank, send: str, receive: str) -> None:
    if receive:
        ring(rank, send, receive)
    else:
        counted(rank, send)


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
    report = check(lambda rank: program(rank, send, receive), ranks=2, fabric=fabric, seeds=SEEDS)
    assert not report.ok
    assert "03_ibgda_shim" in str(report)


def test_what_infiniband_forgives_is_not_found_there() -> None:
    trusting = ("channel_send_trusts_the_queue_pair", "channel_receive")
    assert check(lambda rank: program(rank, *trusting), ranks=2, fabric="rc", seeds=SEEDS).ok


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


_OVERTAKES = ("signal overtakes data", "name the queue pair of the put in line 10 of queue_pairs.cu")
_REUSED = ("source reused", "put a quiet between line 7 and line 14 of queue_pairs.cu")


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
    report = check(queue_pairs, ranks=2, fabric=fabric, seeds=SEEDS, args=(quiet_qp, count_qp))
    assert {(f.kind, f.place) for f in report.findings} == wrong, str(report)

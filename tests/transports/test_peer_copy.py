"""Data that a proxy brings to one GPU of a host, handed on to the others in one launch."""

from __future__ import annotations

import numpy as np
import pytest

from ep_lib import Fabric, Kernel, Rank, check, spawn
from ep_lib.errors import ArgumentError
from ep_lib.transports.proxy.peer_copy import Copy, chunks, peer_copy

SIZES = (1, 100, 4096, 70_000, 16)
CHUNK = 4096
TWO_NODES = Fabric("rc", ranks_per_node=2)
SOURCE = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
extern "C" __global__ void send(char* inbox, const char* outbox, size_t bytes, uint64_t* arrived, int peer) {
    ep::net_put_signal_nbi_block(inbox, outbox, bytes, arrived, 1, peer);
}
extern "C" __global__ void await(const uint64_t* done, uint64_t chunks, const char* shared, size_t bytes, char* out) {
    if (!ep::wait_until_ge_block(done, chunks, {ep::kPhaseSignal, -1, -1})) return;
    ep::copy_bytes<ep::kBlockUnroll>(out, shared, bytes, threadIdx.x, blockDim.x);
}
"""


def hand_on(rank: Rank, patient: bool = True) -> bool:
    """Rank 0 sends pieces to rank 2 over the NIC, which hands each on to rank 3, beside it."""
    total, ends = sum(SIZES), np.cumsum(SIZES)
    inbox, outbox, shared = (rank.symmetric(total, np.uint8) for _ in range(3))
    arrived, done = rank.symmetric(len(SIZES), np.uint64), rank.symmetric(1, np.uint64)
    sent = np.random.default_rng(5).integers(1, 256, total, np.uint8)
    pieces = [(int(end) - size, size, 8 * number) for number, (end, size) in enumerate(zip(ends, SIZES, strict=True))]
    if rank.rank == 0:
        outbox[:] = sent
        for number, (begin, size, _) in enumerate(pieces):
            to, source = inbox[begin:], outbox[begin:]
            Kernel.from_source(SOURCE, "send").launch(rank, 1, 64, to, source, size, arrived[number:], 2)
    if rank.rank == 2:
        base = [array.__array_interface__["data"][0] for array in (shared, inbox, arrived, done)]
        copies = [
            Copy(3, base[0] + begin, base[1] + begin, size, base[2] + signal if patient else 0, 1, base[3])
            for begin, size, signal in pieces
        ]
        peer_copy(rank, copies, chunk_bytes=CHUNK, blocks=3)
    if rank.rank == 3:
        out = rank.to_device(np.zeros(total, np.uint8))
        expected = sum(chunks(size, CHUNK) for size in SIZES)
        Kernel.from_source(SOURCE, "await").launch(rank, 1, 64, done, expected, shared, total, out)
        return np.array_equal(rank.to_host(out), sent)
    rank.synchronize()
    return True


@pytest.mark.slow
def test_pieces_of_any_size_are_handed_on() -> None:
    for seed in range(4):
        assert spawn(hand_on, 4, "emulator", fabric=TWO_NODES, seed=seed, transport="proxy") == [True] * 4


@pytest.mark.extended
def test_the_checker_agrees() -> None:
    report = check(hand_on, 4, TWO_NODES, 2, transport="proxy")
    assert report.ok, str(report)


def test_the_checker_finds_copies_that_do_not_wait() -> None:
    report = check(hand_on, 4, TWO_NODES, 2, args=(False,), transport="proxy", compare_values=False)
    assert "peer_copy" in str(report), str(report)


def test_what_is_refused() -> None:
    def main(rank: Rank) -> None:
        peer_copy(rank, [])
        with pytest.raises(ArgumentError, match="peer is 1; it must be a rank, from 0 to 0"):
            peer_copy(rank, [Copy(1, 0, 0, 0)])
        with pytest.raises(ArgumentError, match="chunk_bytes is 100; it must be a multiple of 16"):
            peer_copy(rank, [], chunk_bytes=100)

    spawn(main, 1, "emulator")

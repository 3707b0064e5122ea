"""tutorial_kernels/08_fp8_and_low_latency*.cu beyond what notebook 08 runs: under the checker, and for GPUs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support import ROOT

import ep_lib

TUTORIALS = ROOT / "tutorial_kernels"
RIGHT, BROKEN = (TUTORIALS / f"08_fp8_and_low_latency{end}.cu" for end in ("", "_broken"))
WORDS, ROUNDS = 5, 4
RANKS, PER_RANK, TOP_K, TOKENS, HIDDEN = 3, 2, 2, 3, 128


def ping_pong(rank: ep_lib.Rank, file: Path, name: str) -> bool:
    peer = 1 - rank.rank
    words = np.arange(2 * ROUNDS * WORDS, dtype=np.uint64).reshape(2, ROUNDS, WORDS) + np.uint64(7)
    inbox, flag = rank.symmetric((WORDS, 2), np.uint64), rank.symmetric(1, np.uint64)
    memory = (inbox, flag) if name == "ping_pong_flag" else (inbox,)
    out = rank.to_device(np.zeros((ROUNDS, WORDS), np.uint64))
    program = ep_lib.Kernel.from_file(file, name)
    program.launch(rank, 1, 32, *memory, rank.to_device(words[rank.rank]), out, WORDS, ROUNDS, peer)
    return bool((rank.to_host(out) == words[peer]).all())


@pytest.mark.parametrize("name", ["ping_pong_flag", "ping_pong_packets"])
def test_ping_pong_is_clean(name: str) -> None:
    report = ep_lib.check(ping_pong, ranks=2, seeds=6, args=(RIGHT, name))
    assert report.ok, str(report)


def test_data_and_flag_in_two_stores_are_found() -> None:
    report = ep_lib.check(ping_pong, ranks=2, seeds=10, args=(BROKEN, "ping_pong_two_stores"))
    (found,) = [each for each in report.findings if each.kind == "weak memory"]
    assert found.first and "packet->data" in found.first.source
    assert found.remedy.startswith("one store for both words")


def test_a_tag_used_again_brings_old_data() -> None:
    assert not all(ep_lib.spawn(ping_pong, 2, "emulator", args=(BROKEN, "ping_pong_same_tag")))


def there_and_back(rank: ep_lib.Rank, send: str, receive: str) -> bool:
    """One batch to its experts and back; experts do nothing, so a token comes back times the sum of its weights."""
    places = PER_RANK * RANKS * TOKENS
    arrays = [rank.symmetric((places, 144), np.uint8), rank.symmetric(places, np.uint64)]
    arrays.append(rank.symmetric((RANKS * TOKENS, 2), np.uint64))
    addresses = np.array([rank.peer_address(array, rank.rank) for array in arrays], np.uint64)
    batch = addresses.tobytes() + np.array([TOKENS, TOP_K, PER_RANK, HIDDEN], np.int32).tobytes()
    sums, flags = rank.symmetric((RANKS, TOKENS, HIDDEN), np.float32), rank.symmetric((RANKS, TOKENS), np.uint64)
    packets = rank.symmetric((RANKS, TOKENS, TOP_K, 2), np.uint64)
    rng = np.random.default_rng(rank.rank)
    x = np.tile(rng.integers(1, 8, (TOKENS, 1)).astype(ml_dtypes.bfloat16), HIDDEN)  # a row of one number: exact in FP8
    idx = np.array([rng.permutation(RANKS * PER_RANK)[:TOP_K] for _ in range(TOKENS)], np.int32)
    weights = rng.random((TOKENS, TOP_K), np.float32)
    out = rank.to_device(np.zeros((places, HIDDEN), np.float32))
    result = rank.to_device(np.zeros((TOKENS, HIDDEN), np.float32))
    sent, on_device = rank.to_device(np.zeros(RANKS, np.int32)), rank.to_device(idx)
    for name, args in (
        (send, (rank.to_device(x.view(np.uint16)), on_device, sent)),
        (receive, (out,)),
        ("combine_sums", (out, packets, sums, flags, on_device, rank.to_device(weights), result)),
    ):
        ep_lib.Kernel.from_file(RIGHT, name).launch(rank, 1, 32, batch, *args)
    combined = rank.to_host(result)
    rank.barrier()
    return bool(np.allclose(combined, x.astype(np.float32) * weights.sum(axis=1, keepdims=True), rtol=1e-5))


@pytest.mark.parametrize(
    "pair", [("dispatch_to_experts", "receive_at_experts"), ("dispatch_to_ranks", "receive_and_scatter")]
)
def test_both_ways_to_the_experts_are_clean_and_bring_every_row(pair: tuple[str, str]) -> None:
    assert all(ep_lib.spawn(there_and_back, RANKS, "emulator", args=pair))
    report = ep_lib.check(there_and_back, ranks=RANKS, seeds=4, args=pair)
    assert report.ok, str(report)

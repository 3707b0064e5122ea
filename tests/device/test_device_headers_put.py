"""Puts at thread, warp and block level: every size and misalignment, any peer; nothing beside the target is touched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ep_lib
from ep_lib import Kernel, Rank

Spmd = Callable[..., list[Any]]
LEVELS = ("thread", "warp", "block")
THREADS = 96
MARGIN = 64  # bytes before and behind the target that must stay as they are
FILL = 0xCC

SOURCE = """
#include <ep/put.cuh>
extern "C" __global__ void put(int level, char* dst, const char* src, size_t bytes, int peer) {
    if (blockIdx.x != 0) return;
    if (level == 0 && threadIdx.x == 0) ep::put_thread(dst, src, bytes, peer);
    if (level == 1 && ep::warp_id() == 1) ep::put_warp(dst, src, bytes, peer);
    if (level == 2) ep::put_block(dst, src, bytes, peer);
}
"""


@functools.lru_cache(maxsize=1)
def kernel() -> Kernel:
    return Kernel.from_source(SOURCE, "put")


def data_of(rank: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(0, 256, size, np.uint8)


def exchange(rank: Rank, cases: list[tuple[int, int, int, int, int]]) -> list[tuple[Any, Any]]:
    """Each rank puts to the rank ``distance`` ahead, case by case; returns (what arrived, what should have)."""
    results = []
    for level, size, dst_offset, src_offset, distance in cases:
        heap = rank.symmetric(size + 2 * MARGIN + 16, np.uint8, fill=FILL)
        data = rank.to_device(data_of(rank.rank, size + 16))
        peer = (rank.rank + distance) % rank.world_size
        kernel().launch(rank, 2, THREADS, level, heap[MARGIN + dst_offset :], data[src_offset:], size, peer)
        rank.barrier()
        expected = np.full(len(heap), FILL, np.uint8)
        sender = (rank.rank - distance) % rank.world_size
        start = MARGIN + dst_offset
        expected[start : start + size] = data_of(sender, size + 16)[src_offset : src_offset + size]
        results.append((rank.to_host(heap), expected))
        rank.free(heap)
    return results


def check(results: list[list[tuple[Any, Any]]], cases: list[tuple[int, int, int, int, int]]) -> None:
    for rank, per_case in enumerate(results):
        for case, (found, expected) in zip(cases, per_case, strict=True):
            assert np.array_equal(found, expected), f"rank {rank}, (level, size, dst, src, distance) {case}"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("level", range(3), ids=LEVELS)
def test_all_alignments_of_small_and_odd_sizes(spmd: Spmd, level: int) -> None:
    sizes = (0, 1, 2, 15, 16, 17, 31, 300)
    offsets = (0, 1, 2, 3, 4, 8, 15)
    cases = [(level, size, dst, src, 1) for size in sizes for dst in offsets for src in offsets]
    check(spmd(exchange, 2, cases), cases)


@pytest.mark.parametrize("level", range(3), ids=LEVELS)
def test_sizes_around_the_unrolled_rounds(spmd: Spmd, level: int) -> None:
    """Words a round: threads x words in flight, then half as many, ...; one byte and one word around each."""
    threads, unroll = ((1, 8), (32, 8), (THREADS, 4))[level]
    rounds = [threads * k * 16 for k in (1, 2, unroll, 2 * unroll + 1)]
    cases = [(level, size + d, 16, 0, 1) for size in rounds for d in (-16, -1, 0, 1, 16)]
    check(spmd(exchange, 2, cases), cases)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    ranks=st.integers(1, 8),
    level=st.integers(0, 2),
    size=st.one_of(st.integers(0, 600), st.integers(0, 40000)),
    dst=st.integers(0, 15),
    src=st.integers(0, 15),
    distance=st.integers(0, 7),
    seed=st.integers(0, 2**32),
)
def test_any_put_on_the_emulator(
    ranks: int, level: int, size: int, dst: int, src: int, distance: int, seed: int
) -> None:
    """``distance`` 0 (or a multiple of ``ranks``) is a put to oneself."""
    cases = [(level, size, dst, src, distance)]
    check(ep_lib.spawn(exchange, ranks=ranks, backend="emulator", seed=seed, args=(cases,)), cases)


@pytest.mark.gpu(count=2)
def test_large_puts_on_gpus() -> None:
    cases = [
        (level, 1 << 20, dst, src, distance)
        for level in range(3)
        for dst in (0, 1, 4)
        for src in (0, 4)
        for distance in (0, 1)
    ]
    check(ep_lib.spawn(exchange, ranks=2, backend="cuda", args=(cases,)), cases)

"""Programs around tutorial_kernels/01_write_signal.cu: a ring, several writes under one signal, a pipeline."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank
from support import ROOT

TUTORIAL = ROOT / "tutorial_kernels"
RIGHT = ("bare", "thread", "warp")


@functools.lru_cache(maxsize=32)
def kernel(name: str, file: str = "01_write_signal") -> Kernel:
    return Kernel.from_file(TUTORIAL / f"{file}.cu", name)


def broken(name: str) -> Kernel:
    return kernel(name, "01_write_signal_broken")


def data_of(rank: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(0, 256, size, np.uint8)


def ring(rank: Rank, send: Kernel, receive: Kernel, size: int) -> tuple[bool, list[int]]:
    """Every rank writes to the next rank and reads what the previous one wrote. (is it right?, own signal)"""
    next_rank, previous = (rank.rank + 1) % rank.world_size, (rank.rank - 1) % rank.world_size
    target, signal = rank.symmetric(size, np.uint8), rank.symmetric(1, np.uint64)
    source, out = rank.to_device(data_of(rank.rank, size)), rank.to_device(np.zeros(size, np.uint8))
    send.launch(rank, 2, 64, target, source, size, signal, next_rank)
    receive.launch(rank, 2, 64, signal, 1, target, size, out, previous)
    right = np.array_equal(rank.to_host(out), data_of(previous, size))
    return right, rank.to_host(signal).tolist()


def several(rank: Rank, offsets: list[int]) -> tuple[bool, list[int]]:
    peer, size = 1 - rank.rank, offsets[-1]
    target, signal = rank.symmetric(max(size, 1), np.uint8), rank.symmetric(1, np.uint64)
    source, out = rank.to_device(data_of(rank.rank, max(size, 1))), rank.to_device(np.zeros(max(size, 1), np.uint8))
    bounds = rank.to_device(np.array(offsets, np.uint64))
    send = kernel("multi_write_one_signal")
    send.launch(rank, 1, 32, target, source, bounds, len(offsets) - 1, signal, peer)
    kernel("wait_and_read").launch(rank, 1, 96, signal, 1, target, size, out, peer)
    right = np.array_equal(rank.to_host(out)[:size], data_of(peer, max(size, 1))[:size])
    return right, rank.to_host(signal).tolist()


def pipeline(rank: Rank, send: Kernel, receive: Kernel, slot_bytes: int, num_slots: int, rounds: int) -> Any:
    """Rank 0 streams to rank 1. Returns whether all rounds came out right, and the two counters."""
    peer, size = 1 - rank.rank, max(rounds * slot_bytes, 1)
    slots = rank.symmetric(num_slots * slot_bytes, np.uint8)
    arrived, credits = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    source, out = rank.to_device(data_of(0, size)), rank.to_device(np.zeros(size, np.uint8))
    args = (slots, slot_bytes, num_slots, arrived, credits)
    if rank.rank == 0:
        send.launch(rank, 1, 32, *args, source, rounds, peer)
    else:
        receive.launch(rank, 1, 32, *args, out, rounds, peer)
    right = bool(
        rank.rank == 0
        or np.array_equal(rank.to_host(out)[: rounds * slot_bytes], data_of(0, size)[: rounds * slot_bytes])
    )
    rank.barrier()
    return right, rank.to_host(arrived).tolist(), rank.to_host(credits).tolist()

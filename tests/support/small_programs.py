"""Small programs for exhaustive checks: kernels/small_programs.cu, as main runs them."""

from __future__ import annotations

import functools

import numpy as np

import ep_lib
from support import TESTS

KERNELS = TESTS / "kernels" / "small_programs.cu"

# And how many threads they have.
PROGRAMS = {
    "store_buffering": 2,
    "load_buffering": 2,
    "message_passing": 2,
    "two_plus_two_writes": 2,
    "independent_readers": 3,
    "write_to_read": 3,
    "coherent_reads": 3,
    "counter": 3,
    "lost_update": 3,
    "apart": 2,
    "cas_race": 3,
    "cas_loop": 2,
    "waits_for_it": 2,
    "ping_pong": 2,
    "spin_lock": 2,
    "barrier_between": 2,
    "shuffled": 2,
    "dekker": 2,
    "sequence_lock": 2,
    "turns": 2,
}


@functools.cache
def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_file(KERNELS, name)


def program(rank: ep_lib.Rank, name: str, threads: int) -> list[list[int]]:
    x, out = rank.to_device(np.zeros(8, np.uint32)), rank.to_device(np.zeros(8, np.uint32))
    kernel(name).launch(rank, 1, threads, x, out)
    return [rank.to_host(x).tolist(), rank.to_host(out).tolist()]

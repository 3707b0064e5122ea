"""What test_nth_failure.py runs with no_memory.cpp preloaded: every allocation of the emulator's runtime fails once.

Prints how many allocations there were, how many were tried, how many of these were told, and what went wrong.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ep_lib
from ep_lib import Rank
from ep_lib.errors import BackendUnavailable

SOURCE = """
#include <cstdio>
#include <ep/net.cuh>
#include <ep/wait.cuh>
extern "C" __global__ void pass(uint64_t* source, uint64_t* box, uint64_t* flag, uint64_t* seen) {
    __shared__ int shared[32];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        source[0] = 40 + shared[5];
        ep::net_put_nbi(box, source, 8, peer);
        ep::net_quiet(peer);
        ep::net_atomic_add_u64_nbi(flag, 1, peer);
        ep::net_quiet(peer);
        printf("rank %d has sent\\n", ep::rank());
        if (ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, 0})) seen[0] = box[0];
    }
}
"""
AGAIN = "ep::net_put_nbi(box, source, 8, peer);"
RACE = SOURCE.replace("ep::net_quiet(peer);", AGAIN, 1)


def main(rank: Rank, kernel: ep_lib.Kernel) -> int:
    source, box, flag, seen = (rank.symmetric(1, np.uint64) for _ in range(4))
    more = rank.to_device(np.zeros(4))
    kernel.launch(rank, 2, 32, source, box, flag, seen)
    rank.synchronize()
    rank.barrier()
    rank.free(box)
    return int(seen[0]) + len(more)


right, race = ep_lib.Kernel.from_source(SOURCE, "pass"), ep_lib.Kernel.from_source(RACE, "pass")
slow_link = ep_lib.Fabric("srd", delayed_messages={(0, 1, 0): 0.001})


def spawned() -> Any:
    return ep_lib.spawn(main, 2, "emulator", fabric="rc", args=(right,))


def checked() -> Any:
    return [f.kind for f in ep_lib.check(main, 2, slow_link, [0], (race,), reduce=False).findings]


def simulated() -> Any:
    return ep_lib.simulate(main, 2, "rc", args=(right,)).results


def try_all(program: Callable[[], Any], no_memory_at: Callable[[int], int], stride: int) -> dict[str, Any]:
    wanted = program()
    no_memory_at(2**31)
    program()
    found: dict[str, Any] = {"calls": no_memory_at(0), "tried": 0, "told": 0, "wrong": []}
    for number in range(1, found["calls"] + 1, stride):
        found["tried"] += 1
        no_memory_at(number)
        try:
            got = program()
            if got != wanted:
                found["wrong"].append(f"{number}: {got}")
        except BackendUnavailable:
            found["told"] += 1
        finally:
            no_memory_at(0)
        if found["tried"] % 50 == 0 and (got := program()) != wanted:
            found["wrong"].append(f"after {number}: {got}")
    return found


if __name__ == "__main__":
    fail = ctypes.CDLL(sys.argv[1]).no_memory_at
    every = int(sys.argv[2])
    found = [try_all(spawned, fail, 1), try_all(simulated, fail, max(1, every // 2)), try_all(checked, fail, every)]
    print(json.dumps(found))

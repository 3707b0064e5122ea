"""DeepEP's intranode channel: the warps of a sender write rows into the peer's queue, and one lane moves its tail.

    ep-lib check examples/models/deepep_intranode.py --exhaustive --memory ptx
    ep-lib check examples/models/deepep_intranode.py --main cheap_fence

The rows are plain stores of many threads. A barrier puts all of them before the one thread that moves the tail, and its
release at system scope publishes them, not its own stores only. Primus-Turbo made that release a compiler barrier and a
relaxed store by default, and up to six of 8,192 rows were silently wrong in a run (github.com/AMD-AGI/Primus-Turbo pull
request 482). Written from github.com/deepseek-ai/DeepEP, csrc/kernels/legacy/intranode.cu.
"""

import numpy as np
from changed import changed

import ep_lib

SOURCE = """
#include <ep/memory.cuh>
#include <ep/peer.cuh>
constexpr int kThreads = 2;  // each stands for a warp

extern "C" __global__ void channel(uint64_t* queue, uint64_t* tail, uint64_t* out) {
    const int thread = threadIdx.x;
    if (ep::rank() == 0) {
        ep::peer_ptr(queue, 1)[thread] = 10 + thread;
        __syncthreads();
        if (thread == 0) ep::st_release_sys_u64(ep::peer_ptr(tail, 1), kThreads);
    } else {
        if (thread == 0) {
            while (ep::ld_acquire_sys_u64(tail) != kThreads) {
            }
        }
        __syncthreads();
        out[thread] = queue[thread];
    }
}
"""


def run(rank: ep_lib.Rank, source: str) -> list[int]:
    queue, tail = rank.symmetric(2, np.uint64), rank.symmetric(1, np.uint64)
    out = rank.to_device(np.zeros(2, np.uint64))
    ep_lib.Kernel.from_source(source, "channel", filename="deepep_intranode.cu").launch(rank, 1, 2, queue, tail, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def cheap_fence(rank: ep_lib.Rank) -> list[int]:
    """The tail is stored without release (Primus-Turbo, pull request 482)."""
    return run(rank, changed(SOURCE, "ep::st_release_sys_u64", "ep::st_relaxed_sys_u64"))


def release_of_one_warp(rank: ep_lib.Rank) -> list[int]:
    """No barrier before the tail: the release covers what its own thread wrote, and not the other warps' rows."""
    sends = "= 10 + thread;\n        __syncthreads();\n"
    return run(rank, changed(SOURCE, sends, "= 10 + thread;\n"))


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator")[1] == [10, 11]

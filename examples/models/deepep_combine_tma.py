"""DeepEP's low-latency combine: TMA loads the rows into a stage of shared memory, and loads the next into the same one.

    ep-lib check examples/models/deepep_combine_tma.py --exhaustive
    ep-lib check examples/models/deepep_combine_tma.py --main polled_without_fence

Threads read and write by the generic proxy, TMA by the async proxy, and what orders threads does not order proxies.
Two places need a proxy fence: after the flag has been polled, before TMA loads what the peer wrote; and after the
threads have read a stage, before TMA writes the next row into it. DeepEP lacked both (github.com/deepseek-ai/DeepEP
issue 621, pull requests 632 and 642), NCCL's nccl_ep inherited it (github.com/NVIDIA/nccl-extensions issue 8). Seen
were sums that changed from run to run on GB200.
"""

import numpy as np
from changed import changed

import ep_lib

ROWS, LANES = 2, 32
SOURCE = """
#include <ep/signal.cuh>
#include <ep/tma.cuh>
using namespace ep;
constexpr int kRows = 2, kBytes = 128;  // of a row: a word for each lane

extern "C" __global__ void combine(uint32_t* rows, uint64_t* flag, uint32_t* out) {
    if (rank() == 0) {
        for (int r = 0; r < kRows; ++r) peer_ptr(rows, 1)[32 * r + lane_id()] = 100 * r + lane_id();
        __syncwarp();
        if (lane_id() == 0) signal_add(flag, 1, 1);
        return;
    }
    __shared__ __align__(128) uint32_t stage[32];
    __shared__ uint64_t barriers[1];
    TmaRing ring(barriers, 1);
    if (lane_id() == 0) {
        while (read_signal(flag) == 0) {
        }
    }
    __syncwarp();
    tma_fence();  // the peer's threads wrote the rows, TMA reads them
    uint32_t sum = 0;
    for (int r = 0; r < kRows; ++r) {
        tma_load(stage, rows + 32 * r, kBytes, ring.barrier());
        tma_arrive(ring.barrier(), kBytes);
        ring.wait();
        ring.next();
        sum += stage[lane_id()];
        tma_fence();   // the threads have read the stage, TMA writes it
        __syncwarp();  // all of them have
    }
    out[lane_id()] = sum;
}
"""


def run(rank: ep_lib.Rank, source: str) -> list[int]:
    rows, flag = rank.symmetric(ROWS * LANES, np.uint32), rank.symmetric(1, np.uint64)
    out = rank.to_device(np.zeros(LANES, np.uint32))
    ep_lib.Kernel.from_source(source, "combine", filename="deepep_combine_tma.cu").launch(rank, 1, 32, rows, flag, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def polled_without_fence(rank: ep_lib.Rank) -> list[int]:
    """The flag is polled by threads, and TMA loads without a proxy fence (pull request 632)."""
    return run(rank, changed(SOURCE, "    tma_fence();  // the peer's threads wrote the rows, TMA reads them\n", ""))


def stage_without_fence(rank: ep_lib.Rank) -> list[int]:
    """TMA writes the stage again without a proxy fence after the threads' reads (issue 621, pull request 642).

    This one the checker does not find: it takes the barrier to order a read before a bulk copy that is asked for later.
    """
    return run(rank, changed(SOURCE, "        tma_fence();   // the threads have read the stage, TMA writes it\n", ""))


def stage_before_all_have_read(rank: ep_lib.Rank) -> list[int]:
    """One lane asks for the next row while others still read this one."""
    return run(rank, changed(SOURCE, "        __syncwarp();  // all of them have\n", ""))


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator")[1] == [100 + 2 * lane for lane in range(LANES)]

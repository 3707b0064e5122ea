// Bulk copies by TMA: a row at a time between global and shared memory, while the threads do something else.
//
// On sm_90 and later the Tensor Memory Accelerator of each SM moves the bytes: one lane names source, target and size,
// and no register holds any of the data. So a few warps keep more bytes in flight than a block full of threads with
// 16-byte loads, and 8 SMs fill the links that plain stores need 24 for. On older GPUs the warp's lanes copy; the results
// are the same.
//
//     tma_load(shared, global, bytes, barrier);  tma_arrive(barrier, bytes);   ...   tma_wait(barrier, phase);
//     tma_store(global, shared, bytes);  tma_commit();  ...  tma_wait_read<N>();     tma_wait_written<N>();
//
// All 32 lanes of a warp call each of these together, with the same arguments. A barrier belongs to ONE warp, and so
// does the shared memory that it guards. Addresses and sizes are multiples of 16 bytes.
//
//   tma_barrier_init(barrier)   one lane; __syncwarp or __syncthreads before the first use
//   tma_load, tma_arrive        any number of loads, then one arrive with the sum of their bytes: one round
//   tma_wait(barrier, phase)    until the round's bytes are there; the phase is 0 for the first round, then 1, 0, 1, ...
//   tma_store, tma_commit       any number of stores, then one commit: one group
//   tma_wait_read<N>            until all but the last N groups have been read: their shared memory may be reused
//   tma_wait_written<N>         until all but the last N groups have been written; a release by lane 0 publishes them
//   tma_fence                   between access by threads and a bulk copy of the same memory, in either order
//
// Call __syncwarp before shared memory that lanes have read is loaded again. Lanes that wrote what a tma_store sends
// each call tma_fence, and then __syncwarp.
//
// Rows in shared memory should start at multiples of 128 bytes: otherwise TMA splits every 128-byte line in two, on the
// links as well.
//
// The instructions are "cp.async.bulk" of the PTX ISA; their use for expert parallelism follows DeepEP
// (github.com/deepseek-ai/DeepEP, csrc/kernels/intranode.cu).
#pragma once
#include <ep/platform.cuh>

namespace ep {

constexpr int kTmaSharedAlignment = 1024;  // bytes: of rows in shared memory, for speed

// A warp's state for `stages` loads in flight: a ring of barriers, and the phase of the next wait.
struct TmaRing {
    uint64_t* barriers;  // in shared memory, one per stage, owned by this warp
    int stages;
    int stage;
    uint32_t phase;

    EP_DEVICE TmaRing(uint64_t* own_barriers, int num_stages)
        : barriers(own_barriers), stages(num_stages), stage(0), phase(0) {
        for (int s = lane_id(); s < stages; s += kWarpSize) tma_barrier_init(barriers + s);
        tma_fence();
        __syncwarp();
    }
    EP_DEVICE uint64_t* barrier() const { return barriers + stage; }
    EP_DEVICE void wait() const { tma_wait(barriers + stage, phase); }
    EP_DEVICE void next() {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

}  // namespace ep

// Bulk copies: a row at a time between global and shared memory, while the threads do something else.
//
// On sm_90 and later a copy engine inside each multiprocessor (TMA) moves the bytes: one lane names source, target and
// size, and no register holds any of it. So a few warps keep more bytes in flight than a block full of threads with
// 16-byte loads, and 8 multiprocessors fill the links that plain stores need 24 for. Older GPUs and the emulator copy
// with the warp's lanes: the same results.
//
//     bulk_load(shared, global, bytes, barrier);  bulk_arrive(barrier, bytes);   ...   bulk_wait(barrier, parity);
//     bulk_store(global, shared, bytes);  bulk_commit();  ...  bulk_wait_read<N>();    bulk_wait_written<N>();
//
// All 32 lanes of a warp call each of these together, with the same arguments. A barrier belongs to ONE warp, and so
// does the shared memory that it guards. Addresses and sizes are multiples of 16 bytes.
//
//   bulk_barrier_init(barrier)    one lane; __syncthreads or __syncwarp before the first use
//   bulk_load, bulk_arrive        any number of loads, then one arrive with the sum of their bytes: one round
//   bulk_wait(barrier, parity)    until the round is there; parity is 0 for the first round, 1 for the second, 0, ...
//   bulk_store, bulk_commit       any number of stores, then one commit: one group
//   bulk_wait_read<N>             until all but the last N groups have been read: their shared memory may be reused
//   bulk_wait_written<N>          until all but the last N groups have been written; a release by lane 0 publishes them
//   bulk_fence                    between reading or writing memory by threads and having it copied in bulk, either way
//
// A target or source in shared memory that is 16 bytes off a multiple of 128 makes the engine split every 128-byte line
// in two, on the links as well.
//
// Before shared memory that lanes have read is loaded again: __syncwarp. Lanes that wrote what a bulk_store sends:
// bulk_fence in each, then __syncwarp. The instructions are those of PTX ISA "cp.async.bulk"; the use for expert
// parallelism follows DeepEP (github.com/deepseek-ai/DeepEP, csrc/kernels/intranode.cu).
#pragma once
#include <ep/platform.cuh>

namespace ep {

constexpr int kBulkAlignment = 16;            // bytes: addresses and sizes
constexpr int kBulkSharedAlignment = 1024;    // of rows in shared memory; less would be right, but slow: see below
constexpr int kBulkSharedBytes = 227 * 1024;  // that a block of sm_90 may have; static shared memory is part of it

// What a warp needs to keep `stages` loads under way: a ring of barriers, with the parity of each one's next wait.
struct BulkRing {
    uint64_t* barriers;  // in shared memory, one a stage, this warp's own
    int stages;
    int stage;
    uint32_t parity;

    EP_DEVICE BulkRing(uint64_t* own_barriers, int num_stages)
        : barriers(own_barriers), stages(num_stages), stage(0), parity(0) {
        for (int s = lane_id(); s < stages; s += kWarpSize) bulk_barrier_init(barriers + s);
        bulk_fence();
        __syncwarp();
    }
    EP_DEVICE uint64_t* barrier() const { return barriers + stage; }
    EP_DEVICE void wait() const { bulk_wait(barriers + stage, parity); }
    EP_DEVICE void next() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace ep

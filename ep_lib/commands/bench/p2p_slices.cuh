// Shared code of the kernels of `ep-lib bench p2p`.
#pragma once
#include <ep/platform.cuh>

// The part of a message that a block sends: a multiple of 16 bytes, except for the last block.
struct Slice {
    size_t begin, bytes;
};
EP_DEVICE Slice slice_of(size_t bytes) {
    const size_t each = (bytes / gridDim.x + 15) / 16 * 16, begin = min(bytes, blockIdx.x * each);
    return {begin, blockIdx.x + 1 == gridDim.x ? bytes - begin : min(each, bytes - begin)};
}

// Cycles and nanoseconds of this block. One thread calls.
EP_DEVICE void count_time(int64_t begin, uint64_t begin_ns, int64_t* totals) {
    totals[2 * blockIdx.x] = clock64() - begin;
    totals[2 * blockIdx.x + 1] = static_cast<int64_t>(ep::globaltimer_ns() - begin_ns);
}

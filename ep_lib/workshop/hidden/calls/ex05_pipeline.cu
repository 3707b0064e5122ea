// The piece of 05_pipeline, as its test calls it: its kernels are called as functions, which the emulator allows.
#include <05_bounce_buffer.cuh>

namespace {

// How many of this block's waits for either reported room only.
EP_DEVICE uint64_t* woken_by_credits() {
    __shared__ uint64_t count;
    return &count;
}

}  // namespace

namespace ep {

EP_DEVICE int counted_wait_until_either_ge_warp(const uint64_t* first, uint64_t first_expected, const uint64_t* second,
                                                uint64_t second_expected, const WaitInfo& info) {
    const int ready = wait_until_either_ge_warp(first, first_expected, second, second_expected, info);
    if (lane_id() == 0 && ready == 2) ++*woken_by_credits();
    return ready;
}

}  // namespace ep

#define wait_until_either_ge_warp counted_wait_until_either_ge_warp
#pragma push_macro("__global__")
#undef __global__
#define __global__ __device__ inline  // what no test calls is read, and not compiled
#include <05_bounce_buffer.cu>
#pragma pop_macro("__global__")

#include "ex05_pipeline.cuh"

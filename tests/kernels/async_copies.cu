// Copies by cp.async in the forms that people write: right ones, and the same with one line too few or out of place.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;

constexpr int kThreads = 64;
#define KERNEL(name) extern "C" __global__ void name(int* x, int* out)
#define TILE                       \
    __shared__ int s[2][kThreads]; \
    const int t = threadIdx.x

template <int kLeft, bool kMeets>  // copies that may be under way behind the wait; whether all have read, before more
__device__ void in_two_stages(int* x, int* out) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    for (int i = 0; i < 4; i++) {
        if (i < 3) __pipeline_memcpy_async(s[(i + 1) & 1] + t, x + (i + 1) * kThreads + t, 4);
        __pipeline_commit();
        __pipeline_wait_prior(kLeft);
        __syncthreads();
        out[i * kThreads + t] = s[i & 1][kThreads - 1 - t];
        if (kMeets) __syncthreads();
    }
}
KERNEL(two_stages) { in_two_stages<1, true>(x, out); }
KERNEL(two_stages_waited_for_too_laxly) { in_two_stages<2, true>(x, out); }
KERNEL(two_stages_filled_too_early) { in_two_stages<1, false>(x, out); }
KERNEL(waited_for_and_not_handed_on) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[t] = s[0][kThreads - 1 - t];
}
KERNEL(its_own_after_the_wait) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[t] = s[0][t];
}
KERNEL(not_committed) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_wait_prior(0);
    __syncthreads();
    out[t] = s[0][t];
}
KERNEL(the_last_word_filled_with_zeros) {
    TILE;
    if (t < kThreads / 4) __pipeline_memcpy_async(s[0] + 4 * t, x + 4 * t, 16, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[t] = s[0][t];
}
KERNEL(source_written_before_the_wait) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    x[t] = 0;
    __pipeline_wait_prior(0);
    out[t] = s[0][t];
}
KERNEL(source_written_after_the_wait) {
    TILE;
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    x[t] = 0;
    out[t] = s[0][t];
}
KERNEL(by_the_block) {
    TILE;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], x, sizeof(int) * kThreads);
    cg::wait(block);
    out[t] = s[0][kThreads - 1 - t];
}
KERNEL(by_the_block_without_a_wait) {
    TILE;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], x, sizeof(int) * kThreads);
    block.sync();
    out[t] = s[0][kThreads - 1 - t];
}
KERNEL(by_the_block_of_odd_bytes) {
    TILE;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], x, sizeof(int) * (kThreads - 1) + 3);
    cg::wait(block);
    out[t] = t < kThreads - 1 ? s[0][t] : s[0][t] & 0xffffff;
}
KERNEL(by_the_block_in_two_stages) {
    TILE;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], x, sizeof(int) * kThreads);
    cg::memcpy_async(block, s[1], x + kThreads, sizeof(int) * kThreads);
    cg::wait_prior<1>(block);
    out[t] = s[0][kThreads - 1 - t];
    cg::wait(block);
    out[kThreads + t] = s[1][t];
}
KERNEL(by_the_block_in_two_stages_too_early) {
    TILE;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], x, sizeof(int) * kThreads);
    cg::memcpy_async(block, s[1], x + kThreads, sizeof(int) * kThreads);
    cg::wait_prior<1>(block);
    out[t] = s[1][t];
    cg::wait(block);
}
KERNEL(by_a_pipeline) {
    TILE;
    auto pipe = cuda::make_pipeline();
    for (int i = 0; i < 2; i++) {
        pipe.producer_acquire();
        cuda::memcpy_async(s[i] + t, x + i * kThreads + t, sizeof(int), pipe);
        pipe.producer_commit();
    }
    for (int i = 0; i < 2; i++) {
        pipe.consumer_wait();
        out[i * kThreads + t] = s[i][t];
        pipe.consumer_release();
    }
}
KERNEL(by_a_pipeline_read_too_early) {
    TILE;
    auto pipe = cuda::make_pipeline();
    for (int i = 0; i < 2; i++) {
        pipe.producer_acquire();
        cuda::memcpy_async(s[i] + t, x + i * kThreads + t, sizeof(int), pipe);
        pipe.producer_commit();
    }
    pipe.consumer_wait();
    for (int i = 0; i < 2; i++) out[i * kThreads + t] = s[i][t];
    pipe.consumer_wait();
}

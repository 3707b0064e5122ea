// CUDA as people write it beside the basics: named barriers, cooperative groups, __nv_atomic_*, 16 bytes, the device heap.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <math.h>

#include <cuda/atomic>
#include <cuda/ptx>

namespace cg = cooperative_groups;

extern "C" __global__ void named_barriers(const int* x, int* out) {
    __shared__ int tile[128];
    const int half = threadIdx.x / 64, first = half * 64;
    tile[threadIdx.x] = x[threadIdx.x];
    __barrier_sync_count(1 + half, 64);
    out[threadIdx.x] = tile[first + 63 - (threadIdx.x - first)];
}

extern "C" __global__ void barrier_zero_is_syncthreads(const int* x, int* out) {
    __shared__ int tile[128];
    tile[threadIdx.x] = x[threadIdx.x];
    __barrier_sync(0);
    __barrier_sync(3);
    out[threadIdx.x] = tile[127 - threadIdx.x];
}

extern "C" __global__ void split_barrier(const int* x, int* out) {
    __shared__ int tile[128];
    auto block = cg::this_thread_block();
    tile[threadIdx.x] = x[threadIdx.x];
    auto token = block.barrier_arrive();
    block.barrier_wait(std::move(token));
    out[threadIdx.x] = tile[127 - threadIdx.x];
}

extern "C" __global__ void copied_by_the_block(const int* x, int* out) {
    __shared__ int tile[128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, sizeof(int) * 128);
    cg::wait(block);
    out[threadIdx.x] = tile[127 - threadIdx.x];
}

extern "C" __global__ void copied_by_tiles(const int* x, int* out) {
    __shared__ int tile[4][32];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int w = warp.meta_group_rank();
    cg::memcpy_async(warp, tile[w], 32, x + w * 32, 40);
    cg::wait_prior<0>(warp);
    out[threadIdx.x] = tile[w][31 - warp.thread_rank()];
}

extern "C" __global__ void copy_without_a_wait(const int* x, int* out) {
    __shared__ int tile[128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, sizeof(int) * 128);
    out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void scans_of_a_tile(const int* x, int* out) {
    if (threadIdx.x >= 32) return;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    out[threadIdx.x] = cg::inclusive_scan(warp, x[threadIdx.x], cg::plus<int>());
    out[32 + threadIdx.x] = cg::exclusive_scan(warp, x[threadIdx.x]);
}

extern "C" __global__ void partitions(const int* x, int* out) {
    if (threadIdx.x >= 32) return;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto group = cg::labeled_partition(warp, threadIdx.x % 3);
    out[threadIdx.x] = cg::reduce(group, x[threadIdx.x], cg::plus<int>());
    auto halves = cg::binary_partition(warp, threadIdx.x < 16);
    out[32 + threadIdx.x] = halves.size();
}

extern "C" __global__ void reduced_coalesced(const int* x, int* out) {
    if (threadIdx.x >= 32) return;
    if (threadIdx.x % 2) {
        auto group = cg::coalesced_threads();
        const int sum = cg::reduce(group, x[threadIdx.x], cg::plus<int>());
        if (group.thread_rank() == 0) atomicAdd(out, sum);  // however many of the lanes are together
    }
}

extern "C" __global__ void scan_on_an_atomic(const int* x, int* out) {
    if (threadIdx.x >= 32) return;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    if (threadIdx.x == 0) out[0] = 100;
    warp.sync();
    cuda::atomic_ref<int, cuda::thread_scope_device> total(out[0]);
    cg::inclusive_scan_update(warp, total, x[threadIdx.x]);
}

extern "C" __global__ void nv_atomics(const int* x, int* out) {
    __nv_atomic_fetch_add(out, 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    __nv_atomic_max(out + 1, x[threadIdx.x], __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_BLOCK);
    __nv_atomic_add(out + 5, 1, __NV_ATOMIC_RELAXED);
    if (threadIdx.x == 0) {
        __nv_atomic_store_n(out + 2, 5, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
        int expected = 0;
        const bool done = __nv_atomic_compare_exchange_n(out + 3, &expected, 7, false, __NV_ATOMIC_ACQ_REL,
                                                         __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        out[4] = done && __nv_atomic_load_n(out + 3, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE) == 7;
        __nv_atomic_fetch_add(out + 5, 100, __NV_ATOMIC_RELAXED);
    }
}

__device__ int payload, ready;
extern "C" __global__ void nv_atomic_hand_over(const int* x, int* out) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        payload = 42;
        __nv_atomic_store_n(&ready, 1, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
    } else {
        while (__nv_atomic_load_n(&ready, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE) == 0) {
        }
        out[0] = payload;
    }
}

extern "C" __global__ void nv_atomic_without_release(const int* x, int* out) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        payload = 42;
        __nv_atomic_store_n(&ready, 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    } else {
        while (__nv_atomic_load_n(&ready, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE) == 0) {
        }
        __nv_atomic_thread_fence(__NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
        out[0] = payload;
    }
}

struct alignas(16) Pair {
    long long a, b;
};
__device__ Pair pair;
extern "C" __global__ void wide_cas(const int* x, int* out) {
    Pair seen = {0, 0};
    for (;;) {
        const Pair next = {seen.a + 1, seen.b + 1};
        const Pair found = atomicCAS(&pair, seen, next);
        if (found.a == seen.a && found.b == seen.b) break;
        seen = found;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const Pair last = atomicExch(&pair, Pair{0, 0});
        out[0] = static_cast<int>(last.a);
        out[1] = static_cast<int>(last.b);
    }
}

extern "C" __global__ void wide_cas_without_acquire(const int* x, int* out) {
    if (threadIdx.x != 0) return;
    for (;;) {
        const Pair found = atomicCAS(&pair, Pair{0, 0}, Pair{1, 1});
        if (found.a == 0 && found.b == 0) break;
    }
    out[0] = out[0] + 1;
    atomicExch(&pair, Pair{0, 0});
}

extern "C" __global__ void from_the_heap(const int* x, int* out) {
    int* mine = static_cast<int*>(malloc(64));
    for (int i = 0; i < 16; i++) mine[i] = x[threadIdx.x];
    out[threadIdx.x] = mine[3] + mine[15];
    free(mine);
}

extern "C" __global__ void new_and_delete(const int* x, int* out) {
    int* mine = new int[8];
    mine[7] = x[threadIdx.x] + 1;
    out[threadIdx.x] = mine[7];
    delete[] mine;
}

extern "C" __global__ void more_than_the_heap_has(const int* x, int* out) {
    if (threadIdx.x == 0) {
        void* too_much = malloc(9 << 20);
        out[0] = too_much == nullptr;
        void* some = malloc(1 << 20);
        out[1] = some == nullptr;
        free(some);
    }
}

extern "C" __global__ void used_after_free(const int* x, int* out) {
    if (threadIdx.x == 0) {
        int* mine = static_cast<int*>(malloc(64));
        free(mine);
        mine[0] = 1;
    }
}

extern "C" __global__ void freed_twice(const int* x, int* out) {
    if (threadIdx.x == 0) {
        int* mine = static_cast<int*>(malloc(64));
        free(mine);
        free(mine);
    }
}

// Constants that a compiler writes as words.
extern "C" __global__ void no_ordinary_numbers(const int* x, int* out) {
    const auto value = static_cast<float>(x[threadIdx.x]);
    const float same = fminf(fmaxf(value, -INFINITY), INFINITY);
    const bool is_nan = isnan(copysignf(nanf(""), -value));
    out[threadIdx.x] = static_cast<int>(min(INFINITY, same)) + is_nan;
}

extern "C" __global__ void special_registers(const int* x, int* out) {
    out[threadIdx.x] = cuda::ptx::get_sreg_laneid();
}

extern "C" __global__ void named_barrier_of_the_other_half(const int* x, int* out) {
    __shared__ int tile[128];
    tile[threadIdx.x] = x[threadIdx.x];
    __barrier_sync_count(1 + threadIdx.x / 64, 64);
    out[threadIdx.x] = tile[127 - threadIdx.x];
}

extern "C" __global__ void barrier_that_half_reaches(const int* x, int* out) {
    if (threadIdx.x < 64) __barrier_sync_count(2, 128);
    out[threadIdx.x] = 1;
}

// Of __shared__ variables no constructor runs on a GPU, and no initial value is there.
struct Settings {
    int first = 1, second = 2;
};
extern "C" __global__ void shared_with_initial_values(const int* x, int* out) {
    __shared__ Settings settings;
    if (threadIdx.x == 0) out[0] = x[0] + settings.first;
}

// Shuffles, votes, match and reductions, with whole warps and with parts of them.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned kFull = 0xffffffffu;

template <typename T>
__device__ void all_shuffles(unsigned mask, T value, int arg, int width, T* out, int i, int n) {
    out[i] = __shfl_sync(mask, value, arg, width);
    out[n + i] = __shfl_up_sync(mask, value, arg, width);
    out[2 * n + i] = __shfl_down_sync(mask, value, arg, width);
    out[3 * n + i] = __shfl_xor_sync(mask, value, arg, width);
}

// One kernel for all types, chosen by number as in the test.
extern "C" __global__ void shuffles(int type, const void* in, void* out, int arg, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    switch (type) {
#define TYPE(number, T) \
    case number: all_shuffles(kFull, static_cast<const T*>(in)[i], arg, width, static_cast<T*>(out), i, n); break;
        TYPE(0, int)
        TYPE(1, unsigned)
        TYPE(2, long)
        TYPE(3, unsigned long)
        TYPE(4, long long)
        TYPE(5, unsigned long long)
        TYPE(6, float)
        TYPE(7, double)
        TYPE(8, __half)
        TYPE(9, __half2)
        TYPE(10, __nv_bfloat16)
        TYPE(11, __nv_bfloat162)
#undef TYPE
        default: __trap();
    }
}

// Two parts of a warp take different branches and shuffle among themselves, at the same time.
template <typename T>
__global__ void divergent_shuffles(const T* in, T* out, int arg) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    if (threadIdx.x % 32 < 16)
        all_shuffles(0x0000ffffu, in[i], arg, 16, out, i, n);
    else
        all_shuffles(0xffff0000u, in[i], arg, 16, out, i, n);
}

// `own`: every lane's mask, which all lanes of that mask share; lanes with mask 0 stay away.
extern "C" __global__ void votes(const unsigned* own, const int* predicate, int* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    const unsigned mask = own[i];
    if (mask == 0) return;
    const int p = predicate[i];
    out[i] = __any_sync(mask, p);
    out[n + i] = __all_sync(mask, p);
    out[2 * n + i] = static_cast<int>(__ballot_sync(mask, p));
    __syncwarp(mask);
    out[3 * n + i] = static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(p)));
    out[4 * n + i] = __reduce_min_sync(mask, p);
    out[5 * n + i] = __reduce_max_sync(mask, p);
    out[6 * n + i] = static_cast<int>(__reduce_min_sync(mask, static_cast<unsigned>(p)));
    out[7 * n + i] = static_cast<int>(__reduce_max_sync(mask, static_cast<unsigned>(p)));
    out[8 * n + i] = static_cast<int>(__reduce_and_sync(mask, static_cast<unsigned>(p)));
    out[9 * n + i] = static_cast<int>(__reduce_or_sync(mask, static_cast<unsigned>(p)));
    out[10 * n + i] = static_cast<int>(__reduce_xor_sync(mask, static_cast<unsigned>(p)));
    out[11 * n + i] = __reduce_add_sync(mask, p);
}

template <typename T>
__device__ void match(const unsigned* own, const void* values, unsigned* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    const unsigned mask = own[i];
    if (mask == 0) return;
    const T value = static_cast<const T*>(values)[i];
    int all = -1;
    out[i] = __match_any_sync(mask, value);
    out[n + i] = __match_all_sync(mask, value, &all);
    out[2 * n + i] = static_cast<unsigned>(all);
}
extern "C" __global__ void matches(int type, const unsigned* own, const void* values, unsigned* out) {
    if (type == 0) match<int>(own, values, out);
    if (type == 5) match<unsigned long long>(own, values, out);
    if (type == 6) match<float>(own, values, out);
    if (type == 7) match<double>(own, values, out);
}

// Lanes leave a loop one by one; who is left counts the others.
extern "C" __global__ void shrinking(int* out) {
    const int lane = threadIdx.x % 32;
    unsigned mask = kFull;
    int sum = 0;
    for (int round = 0; round <= lane; round++) {
        mask = __ballot_sync(mask, round < lane);
        if (round < lane) sum += __popc(mask);
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void block_votes(const int* predicate, int* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    out[i] = __syncthreads_count(predicate[i]);
    out[n + i] = __syncthreads_and(predicate[i]) != 0;
    out[2 * n + i] = __syncthreads_or(predicate[i]) != 0;
}

// The usual tree: warp sums by shuffles, then one warp over the warps' sums.
template <typename T>
__global__ void block_sum(const T* in, T* out) {
    __shared__ T sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T value = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFull, value, offset);
    if (lane == 0) sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = lane < static_cast<int>(blockDim.x) / 32 ? sums[lane] : T(0);
        for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(kFull, value, offset);
        if (lane == 0) out[blockIdx.x] = value;
    }
}

// Full masks in warps that have fewer lanes: in blocks of any size, and where lanes have left.
extern "C" __global__ void part_warps(unsigned leavers, int* out) {
    __shared__ int given[64];
    const int i = threadIdx.x, lane = i % 32, n = blockDim.x;
    if (leavers >> lane & 1) return;
    given[i] = i;
    __syncwarp();
    const unsigned here = __ballot_sync(kFull, 1), odd = __ballot_sync(kFull, i % 2);
    const int first = __ffs(here) - 1, last = 31 - __clz(here), warp = i - lane;
    int same = 0;
    out[i] = static_cast<int>(here);
    out[n + i] = given[warp + first] + given[warp + last];
    out[2 * n + i] = __shfl_sync(kFull, i, last);
    out[3 * n + i] = __reduce_add_sync(kFull, i);
    out[4 * n + i] = __all_sync(kFull, odd != 0 || here != 0) + 2 * __all_sync(kFull, i % 2);
    out[5 * n + i] = static_cast<int>(__match_all_sync(kFull, warp, &same)) == static_cast<int>(here) && same;
}

// ---- groups by the names of their types ---------------------------------------------------------------------------
__device__ int sum_of(cooperative_groups::thread_group group, int* scratch, int value) {
    const int rank = static_cast<int>(group.thread_rank());
    for (int i = static_cast<int>(group.size()) / 2; i > 0; i /= 2) {
        scratch[rank] = value;
        group.sync();
        if (rank < i) value += scratch[rank + i];
        group.sync();
    }
    return value;  // of rank 0
}
extern "C" __global__ void named_groups(int* out, int threads) {
    namespace cg = cooperative_groups;
    __shared__ int scratch[64];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    cg::thread_block_tile<8> part = cg::tiled_partition<8>(warp);
    const cg::thread_group tile = cg::tiled_partition(block, threads);
    const cg::thread_group of_tile = cg::tiled_partition(tile, threads / 2);
    const int me = static_cast<int>(block.thread_rank());
    out += me * 6;
    out[0] = static_cast<int>(warp.thread_rank()) + 100 * warp.size();
    out[1] = part.shfl(me, 1);
    out[2] = static_cast<int>(tile.thread_rank() + 100 * tile.size());
    out[3] = static_cast<int>(of_tile.thread_rank() + 100 * of_tile.size());
    const int sum = sum_of(tile, scratch + me / threads * threads, me);
    out[4] = tile.thread_rank() == 0 ? sum : -1;
    const int of_block = sum_of(block, scratch, me);
    if (me == 0) out[5] = of_block;
}
extern "C" __global__ void parts_of_coalesced(int* out) {
    namespace cg = cooperative_groups;
    if (threadIdx.x % 3 != 0) return;  // 11 lanes: 0, 3, 6, ...
    const cg::coalesced_group third = cg::coalesced_threads();
    const cg::coalesced_group four = cg::tiled_partition(third, 4);
    out[threadIdx.x] = static_cast<int>(four.size() * 100 + four.thread_rank());
}

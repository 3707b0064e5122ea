// CUDA's keywords and memory spaces in the forms that real kernels use. Compiled by g++, clang++ and NVRTC alike.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

__constant__ int table[4] = {10, 20, 30, 40};
__device__ int visits = 5;
static __device__ unsigned hits[2];
__device__ __constant__ const float kScale = 0.5f;

namespace outer {
namespace {
__device__ __forceinline__ int twice(int x) { return 2 * x; }
}  // namespace
static __device__ __noinline__ int thrice(int x) { return 3 * x; }

template <typename T, int kFactor>
__global__ void __launch_bounds__(256, 2) scale(T* __restrict__ out, const T* __restrict__ in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * T(kFactor);
}
__global__ void functions(int* out) { out[threadIdx.x] = twice(threadIdx.x) + thrice(1); }
}  // namespace outer

extern "C" __global__ void indices(uint3* thread, uint3* block, dim3* sizes) {
    const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned block_rank = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned i = block_rank * blockDim.x * blockDim.y * blockDim.z + in_block;
    thread[i] = threadIdx;
    block[i] = blockIdx;
    if (i == 0) {
        const dim3 b = blockDim;
        sizes[0] = b;
        sizes[1] = gridDim;
        sizes[2] = dim3(warpSize);
    }
}

extern "C" __global__ void globals(int* out) {
    if (threadIdx.x == 0) {
        visits += table[2];
        hits[1]++;
        out[0] = visits;
        out[1] = hits[1];
        out[2] = static_cast<int>(kScale * 8);
    }
}

// ---- shared memory --------------------------------------------------------------------------------------------
template <typename T>
__device__ T block_sum(T value) {
    __shared__ T partial[32];
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    for (int offset = warpSize / 2; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    T sum = 0;
    for (unsigned i = 0; i < blockDim.x / warpSize; i++) sum += partial[i];
    __syncthreads();
    return sum;
}
extern "C" __global__ void static_shared(double* sums, long long* counts) {
    const double sum = block_sum<double>(threadIdx.x + 0.5);
    const long long count = block_sum<long long>(1);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        counts[blockIdx.x] = count;
    }
}

struct __align__(16) Row {
    float value[4];
};
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T value[N];
};
extern "C" __global__ void aligned_shared(unsigned long long* addresses) {
    __shared__ uint8_t odd[3];
    __shared__ alignas(128) uint8_t wide[100];
    __shared__ __align__(64) uint8_t wide_too[100];
    __shared__ Row rows[2];
    __shared__ Pack<__nv_bfloat16, 8> packs[2];
    alignas(int4) unsigned char local[16];
    odd[threadIdx.x % 3] = wide[threadIdx.x] = wide_too[threadIdx.x] = local[threadIdx.x % 16] = 1;
    rows[1].value[0] = odd[0] + local[0];
    packs[1].value[0] = __float2bfloat16(rows[1].value[0]);
    addresses[0] = reinterpret_cast<unsigned long long>(wide);
    addresses[1] = reinterpret_cast<unsigned long long>(wide_too);
    addresses[2] = reinterpret_cast<unsigned long long>(&rows[0]);
    addresses[3] = reinterpret_cast<unsigned long long>(&packs[0]);
    addresses[4] = alignof(Pack<float, 2>) + 100 * alignof(Row);
}

// Two names, one memory: what the one writes, the other reads.
extern "C" __global__ void dynamic_shared(float* out) {
    extern __shared__ float floats[];
    extern __shared__ __align__(16) unsigned char bytes[];
    __shared__ int offset;
    if (threadIdx.x == 0) offset = 1;
    __syncthreads();
    floats[threadIdx.x] = static_cast<float>(blockIdx.x * 1000 + threadIdx.x);
    __syncthreads();
    const int next = (threadIdx.x + offset) % blockDim.x;
    float value;
    memcpy(&value, bytes + next * sizeof(float), sizeof(float));
    out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
alignas(1024) extern __shared__ int4 file_scope[];
extern "C" __global__ void dynamic_shared_at_file_scope(int* out) {
    file_scope[threadIdx.x] = make_int4(threadIdx.x, 1, 2, 3);
    __syncthreads();
    const int4 v = file_scope[blockDim.x - 1 - threadIdx.x];
    out[threadIdx.x] = v.x + v.y + v.z + v.w + (reinterpret_cast<unsigned long long>(file_scope) % 1024 != 0) * 1000;
}

// ---- structs by value, references, lambdas, recursion -----------------------------------------------------------
struct Arguments {
    const float* in;
    float* out;
    int n;
    float factor;
    int4 extra;
};
extern "C" __global__ void by_value(const __grid_constant__ Arguments args) {
    auto index = [&](int block) { return block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); };
    const int i = index(blockIdx.x);
    if (i < args.n) args.out[i] = args.in[i] * args.factor + args.extra.w;
}
__device__ int factorial(int n) { return n <= 1 ? 1 : n * factorial(n - 1); }
extern "C" __global__ void bulk(int4* out, const int4* in, int n, int* factorials) {
    struct Big {
        int4 rows[4];
    };
    Big big;
    memset(&big, 0, sizeof(big));
    for (int i = 0; i < n; i++) out[i] = in[i];
    memcpy(&big, in, sizeof(big));
    *reinterpret_cast<Big*>(out + n) = big;
    factorials[0] = factorial(5);
}

// ---- min and max, and the standard's -------------------------------------------------------------------------------
#include <algorithm>
extern "C" __global__ void extremes(long long* out, int a, unsigned b, long long c, unsigned long long d, float* f) {
    using std::swap;
    size_t bytes = 7, limit = 9;
    out[0] = min(a, 3);
    out[1] = max(a, b);
    out[2] = min(c, (long long)a);
    out[3] = static_cast<long long>(max(d, c));
    out[4] = std::min(a, 4) + std::max(a, 4);
    out[5] = static_cast<long long>(min(bytes, limit));
    out[6] = static_cast<long long>(min(threadIdx.x, 5u));
    out[7] = umin(b, 2u) + llmax(c, 1ll);
    f[0] = min(1.5f, f[0]);
    f[1] = fmaxf(f[1], 0.25f) + static_cast<float>(max(0.5, 1.0f));
}

// ---- threadIdx and its kin are names like others ----------------------------------------------------------------
struct Place {
    uint3 threadIdx;
    dim3 blockDim;
    __device__ unsigned number() const { return threadIdx.x + blockDim.x * threadIdx.y; }
};
__device__ __noinline__ unsigned first(const uint3& threadIdx) { return threadIdx.x; }
__device__ __noinline__ unsigned volume(dim3 blockDim) { return blockDim.x * blockDim.y * blockDim.z; }
template <typename T>
__device__ __noinline__ T larger(const T& a, const T& b) {
    return a < b ? b : a;
}
extern "C" __global__ void indices_by_other_names(unsigned* out) {
    const Place place{threadIdx, blockDim};
    const unsigned at = ::threadIdx.x + ::blockDim.x * ::threadIdx.y + ::blockIdx.x * volume(blockDim);
    const auto thread = threadIdx;
    const dim3 block = blockDim, grid(gridDim);
    __syncthreads();  // others run
    unsigned right = place.number() == thread.x + block.x * thread.y;
    right += first(threadIdx) == thread.x;
    right += larger(threadIdx.x, blockDim.x) == block.x;
    right += max(threadIdx.x, 3u) >= 3 && volume(gridDim) == grid.x;
    out[at] = right;
}

// Every atomic function in every scope, many threads of several blocks on few addresses.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// One function on one type in one scope; all of them are in one kernel, since a test goes through all.
#define ONE(number, function, T)                                                                               \
    case number:                                                                                               \
        static_cast<T*>(found)[i] = function(&static_cast<T*>(cells)[cell], static_cast<const T*>(values)[i]); \
        break;
// The number is 10 * (place in this list, from 1) + scope, as in the test.
#define SCOPES(place, function, T)           \
    ONE(10 * place, function, T)             \
    ONE(10 * place + 1, function##_block, T) \
    ONE(10 * place + 2, function##_system, T)

// Every thread applies its value to a cell and notes what it found there. Block scope: a cell a block.
extern "C" __global__ void contend(int number, void* cells, const void* values, void* found, int num_cells) {
    using ull = unsigned long long;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int cell = num_cells > 1 ? blockIdx.x % num_cells : 0;
    switch (number) {
        SCOPES(1, atomicAdd, int)
        SCOPES(2, atomicAdd, unsigned)
        SCOPES(3, atomicAdd, ull)
        SCOPES(4, atomicAdd, float)
        SCOPES(5, atomicAdd, double)
        SCOPES(6, atomicSub, int)
        SCOPES(7, atomicSub, unsigned)
        SCOPES(8, atomicMin, int)
        SCOPES(9, atomicMin, unsigned)
        SCOPES(10, atomicMin, long long)
        SCOPES(11, atomicMin, ull)
        SCOPES(12, atomicMax, int)
        SCOPES(13, atomicMax, unsigned)
        SCOPES(14, atomicMax, long long)
        SCOPES(15, atomicMax, ull)
        SCOPES(16, atomicAnd, int)
        SCOPES(17, atomicAnd, unsigned)
        SCOPES(18, atomicAnd, long long)
        SCOPES(19, atomicAnd, ull)
        SCOPES(20, atomicOr, int)
        SCOPES(21, atomicOr, unsigned)
        SCOPES(22, atomicOr, long long)
        SCOPES(23, atomicOr, ull)
        SCOPES(24, atomicXor, int)
        SCOPES(25, atomicXor, unsigned)
        SCOPES(26, atomicXor, long long)
        SCOPES(27, atomicXor, ull)
        SCOPES(28, atomicInc, unsigned)
        SCOPES(29, atomicDec, unsigned)
        SCOPES(30, atomicExch, int)
        SCOPES(31, atomicExch, unsigned)
        SCOPES(32, atomicExch, ull)
        SCOPES(33, atomicExch, float)
        default: __trap();
    }
}

template <typename T>
__device__ T next(T x) {
    return static_cast<T>(x * 3 + 1);
}
// A compare-and-swap loop: each thread moves the cell on by one step of a sequence.
template <typename T>
__global__ void cas_loop(T* cell, int scope) {
    T seen = *static_cast<volatile T*>(cell), expected;
    do {
        expected = seen;
        seen = scope == 0   ? atomicCAS_block(cell, expected, next(expected))
               : scope == 1 ? atomicCAS(cell, expected, next(expected))
                            : atomicCAS_system(cell, expected, next(expected));
    } while (seen != expected);
}
extern "C" __global__ void cas_loop_16(unsigned short* cell) {
    unsigned short seen = *static_cast<volatile unsigned short*>(cell), expected;
    do {
        expected = seen;
        seen = atomicCAS(cell, expected, next(expected));
    } while (seen != expected);
}

// Small floats: the sums are of small whole numbers, so that every order gives the same.
extern "C" __global__ void add_small(__half* h, __half2* h2, __nv_bfloat16* b, __nv_bfloat162* b2, float* f,
                                     double* d) {
    const int lane = threadIdx.x % 2;
    atomicAdd(h, __float2half(1.0f));
    atomicAdd(h2, __floats2half2_rn(1.0f, static_cast<float>(lane)));
    atomicAdd(b, __float2bfloat16(1.0f));
    atomicAdd(b2, __floats2bfloat162_rn(static_cast<float>(lane), 1.0f));
    atomicAdd(f, 0.5f);
    atomicAdd_system(d, 0.25);
}

// A ticket lock around a plain counter: needs atomics, a volatile poll and fences.
extern "C" __global__ void ticket_lock(unsigned* lock, int* counter, int rounds) {
    if (threadIdx.x % 32 != 0) return;
    for (int i = 0; i < rounds; i++) {
        const unsigned mine = atomicAdd(&lock[0], 1u);
        while (*reinterpret_cast<volatile unsigned*>(&lock[1]) != mine) __nanosleep(20);
        __threadfence();
        *counter = *counter + 1;
        __threadfence();
        atomicExch(&lock[1], mine + 1);
    }
}

// Ranks add to one cell of rank 0's symmetric heap.
#include <ep/peer.cuh>
extern "C" __global__ void add_to_rank_0(unsigned long long* sum, float* floats, int* largest) {
    const int value = ep::rank() * 1000 + blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd_system(ep::peer_ptr(sum, 0), static_cast<unsigned long long>(value));
    atomicAdd_system(ep::peer_ptr(floats, 0), 1.0f);
    atomicMax_system(ep::peer_ptr(largest, 0), value);
}

// Many threads of several blocks on few addresses.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

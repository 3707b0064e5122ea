// Loads and stores with cache hints, address spaces, clocks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__device__ void through_caches(T* out, const T* in) {
    const int i = threadIdx.x, n = blockDim.x;
    out[i] = __ldg(in + i);
    out[n + i] = __ldca(in + i);
    out[2 * n + i] = __ldcg(in + i);
    out[3 * n + i] = __ldcs(in + i);
    out[4 * n + i] = __ldlu(in + i);
    out[5 * n + i] = __ldcv(in + i);
    __stwb(out + 6 * n + i, in[i]);
    __stcg(out + 7 * n + i, in[i]);
    __stcs(out + 8 * n + i, in[i]);
    __stwt(out + 9 * n + i, in[i]);
}

// One kernel for all types, chosen by number as in the test.
extern "C" __global__ void cached(int type, void* out, const void* in) {
    switch (type) {
#define TYPE(number, T) \
    case number: through_caches(static_cast<T*>(out), static_cast<const T*>(in)); break;
        TYPE(0, char)
        TYPE(1, unsigned char)
        TYPE(2, short)
        TYPE(3, int)
        TYPE(4, unsigned long)
        TYPE(5, long long)
        TYPE(6, float)
        TYPE(7, double)
        TYPE(8, char4)
        TYPE(9, ushort2)
        TYPE(10, int2)
        TYPE(11, uint4)
        TYPE(12, longlong2)
        TYPE(13, float2)
        TYPE(14, float4)
        TYPE(15, double2)
        TYPE(16, __half)
        TYPE(17, __nv_bfloat162)
#undef TYPE
        default: __trap();
    }
}

extern "C" __global__ void past_the_end(const int* in, int* out, long long index) { out[0] = __ldg(in + index); }

// Two blocks wait for what the last block stores. For the emulator only: on a GPU it would be wrong, since headers of some
// toolkits do not mark __ldcg volatile (nor does any mark __ldcv), so the compiler may take such a loop for one that ends.
extern "C" __global__ void poll(int* flags, int* out) {
    if (threadIdx.x != 0) return;
    int seen = 0;
    if (blockIdx.x == gridDim.x - 1) {
        __stcg(&flags[0], 5);
        __threadfence();
        __stwt(&flags[1], 6);
    } else if (blockIdx.x == 0) {
        while ((seen = __ldcg(&flags[0])) == 0) {
        }
        out[0] = seen;
    } else {
        while ((seen = *const_cast<volatile int*>(&flags[1])) == 0) {
        }
        out[1] = seen;
    }
}

extern "C" __global__ void spaces(int* out, int* global) {
    __shared__ int shared[4];
    int local = threadIdx.x;
    if (threadIdx.x != 0) return;
    shared[2] = 7;
    out[0] = __isShared(&shared[1]);
    out[1] = __isShared(global);
    out[2] = __isGlobal(&shared[1]);
    out[3] = __isGlobal(global);
    out[4] = __isLocal(&local) != 0;
    out[5] =
        static_cast<int>(__cvta_generic_to_shared(&shared[3]) - __cvta_generic_to_shared(&shared[2])) == sizeof(int);
    out[6] = *static_cast<int*>(__cvta_shared_to_generic(__cvta_generic_to_shared(&shared[2])));
    out[7] = __isLocal(global);
}

extern "C" __global__ void clocks(long long* out) {
    if (threadIdx.x != 0) return;
    const long long begin = clock64();
    const clock_t begin_32 = clock();
    __nanosleep(100);
    out[0] = clock64() - begin;
    out[1] = static_cast<unsigned>(clock()) - static_cast<unsigned>(begin_32);
    out[2] = clock64();
}

// Faults on purpose (gpu_sanitize.py): a tool that does not report these two proves nothing.
#include <ep/platform.cuh>

extern "C" __global__ void write_past_the_end(int* array, int elements) { array[elements + threadIdx.x] = 1; }

extern "C" __global__ void race_in_shared_memory(int* out, int elements) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = out[threadIdx.x];
    out[threadIdx.x] = shared[elements - 1 - threadIdx.x];  // no barrier: another warp's element, written or not
}

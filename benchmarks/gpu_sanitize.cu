// Faults on purpose (gpu_sanitize.py): a tool that does not report these two would not report any.
#include <ep/platform.cuh>

extern "C" __global__ void write_past_the_end(int* array, int elements) { array[elements + threadIdx.x] = 1; }

extern "C" __global__ void race_in_shared_memory(int* out) {
    __shared__ int word;
    if (threadIdx.x == 0) word = 1;
    out[threadIdx.x] = word;  // no barrier: warps other than the first read too early
}

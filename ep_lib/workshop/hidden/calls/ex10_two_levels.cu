// The piece of 10_two_levels, as its test calls it.
#pragma push_macro("__global__")
#undef __global__
#define __global__ __device__ inline  // the piece's kernels: what no test calls is read, and not compiled
#include <10_two_levels.cu>
#pragma pop_macro("__global__")

#include "ex10_two_levels.cuh"

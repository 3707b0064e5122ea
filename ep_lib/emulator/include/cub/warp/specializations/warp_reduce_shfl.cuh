// CUB's own header. Its inline PTX always shuffles down and adds: `asm volatile(...)` becomes a function that does.
#pragma once
#include <cub/thread/thread_operators.cuh>
#include <cub/util_ptx.cuh>
#include <cub/util_type.cuh>
#if __has_include(<cub/warp/specializations/warp_redux.cuh>)  // later than CUDA 13.0
#include <cub/warp/specializations/warp_redux.cuh>
#endif
#include <cuda/__functional/maximum.h>
#include <cuda/__functional/minimum.h>
#include <cuda/__warp/warp_shuffle.h>
#include <cuda/std/__functional/operations.h>

#define volatile(...) \
    ("");             \
    output = ep_emulator::shuffle_and_add(false, input, offset, shfl_c, member_mask)
#include_next <cub/warp/specializations/warp_reduce_shfl.cuh>
#undef volatile

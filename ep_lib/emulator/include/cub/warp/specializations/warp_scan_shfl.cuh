// CUB's own header. Its inline PTX always shuffles up and adds: `asm volatile(...)` becomes a function that does.
#pragma once
#include <cub/thread/thread_operators.cuh>
#include <cub/util_ptx.cuh>
#include <cub/util_type.cuh>
#include <cuda/__warp/warp_shuffle.h>
#include <cuda/std/__algorithm/clamp.h>
#include <cuda/std/__functional/operations.h>

#define volatile(...) \
    ("");             \
    output = ep_emulator::shuffle_and_add(true, input, offset, shfl_c, member_mask)
#include_next <cub/warp/specializations/warp_scan_shfl.cuh>
#undef volatile

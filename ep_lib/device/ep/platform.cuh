// Where GPU and emulator part ways: the only #ifdef of the device headers.
//
// Everything above the two primitives files is the same source on both: nvcc or NVRTC compile it with inline PTX
// underneath, g++ or clang++ with calls into the emulator's runtime underneath.
#pragma once

#include <stddef.h>
#include <stdint.h>  // NVRTC has neither; ep_lib/device/nvrtc gives it both

#define EP_DEVICE __device__ __forceinline__
#define EP_HOST_DEVICE __host__ __device__ __forceinline__

namespace ep {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;  // the mask of all lanes

// This thread's index in its block, x fastest, as CUDA numbers threads into warps.
EP_DEVICE int thread_in_block() {
    return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

EP_DEVICE int threads_in_block() { return static_cast<int>(blockDim.x * blockDim.y * blockDim.z); }

EP_DEVICE int lane_id() { return thread_in_block() % kWarpSize; }

EP_DEVICE int warp_id() { return thread_in_block() / kWarpSize; }

// Warps of this block, a last incomplete one included.
EP_DEVICE int warps_in_block() { return (threads_in_block() + kWarpSize - 1) / kWarpSize; }

}  // namespace ep

#include <ep/device_state.cuh>

#if defined(EP_EMULATOR)
#include <ep/cpu/tma.cuh>
#include <ep/cpu/primitives.cuh>
#else
#include <ep/gpu/tma.cuh>
#include <ep/gpu/primitives.cuh>
#endif

// The device vocabulary of ep_lib: what a kernel includes as <ep/...>. Begin here.
//
//     platform       this file: threads and warps, and the one #ifdef between GPU and emulator
//     memory         loads, stores, atomics and fences that carry ordering, scope and width in their names
//     peer           ranks, and a peer's copy of a symmetric array: peer_ptr
//     put signal wait            write into a peer's memory, tell it, wait for it with a limit
//     write_signal packet ring   patterns made of these: write then signal, data with its signal, credits
//     slots all_ranks sums groups    pieces of dispatch and combine: exact rows, signals of a grid, sums, rows in groups
//     net transport              operations that a NIC carries out, and the transport behind them
//     proxy_command proxy_operations proxy_ring sealed_ring
//                                commands that a kernel pushes and a thread of the host carries out
//     peer_copy      what has arrived, handed on to other GPUs of the host
//     ibgda_shim nixl_device     the device functions of IBGDA/EFA and of NIXL over these transports
//     tma fp8 trace              bulk copies by TMA, quantisation, values for a simulated timeline
//     pieces                     counts of what goes through a learner's own headers
//     device_state               structs that kernels share with the host
//     gpu/ cpu/ detail/          inline PTX, calls into the emulator's runtime, and how a kernel is entered
//
// To learn it, read write_signal.cuh first, then put, signal and wait. Kernels of dispatch and combine are not here: they
// lie beside their launches in ep_lib/moe and are included as <moe/...>.
//
// Everything above gpu/ and cpu/ is the same source on both platforms: NVRTC or nvcc compiles it on inline PTX, g++ or
// clang++ on calls into the emulator's runtime.
#pragma once

#include <stddef.h>
#include <stdint.h>  // NVRTC has neither; ep_lib/device/nvrtc_headers.cuh provides both

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

// Warps of this block, including a last incomplete one.
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

// cuda::ptx::get_sreg_*: special registers without PTX, the ones that CUB's block and warp algorithms and most kernels
// read. Found before libcu++'s own header of this name, which is inline assembly.
#pragma once
#define _CUDA_PTX_GET_SREG_H_
#include <cuda/std/cstdint>
#include <cuda/std/detail/__config>

#include <cuda/std/__cccl/prologue.h>
_CCCL_BEGIN_NAMESPACE_CUDA_PTX

#define EPEMU_SREG(name, value)                            \
    template <typename = void>                             \
    EPEMU_INLINE ::cuda::std::uint32_t get_sreg_##name() { \
        return static_cast<::cuda::std::uint32_t>(value);  \
    }
#define EPEMU_SREG3(name, value) \
    EPEMU_SREG(name##_x, value.x) EPEMU_SREG(name##_y, value.y) EPEMU_SREG(name##_z, value.z)
EPEMU_SREG3(tid, threadIdx)
EPEMU_SREG3(ntid, blockDim)
EPEMU_SREG3(ctaid, blockIdx)
EPEMU_SREG3(nctaid, gridDim)
EPEMU_SREG(laneid, (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32)
EPEMU_SREG(warpid, (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32)
EPEMU_SREG(nwarpid, (blockDim.x * blockDim.y * blockDim.z + 31) / 32)
EPEMU_SREG(lanemask_eq, 1u << get_sreg_laneid())
EPEMU_SREG(lanemask_lt, (1u << get_sreg_laneid()) - 1)
EPEMU_SREG(lanemask_le, (2u << get_sreg_laneid()) - 1)
EPEMU_SREG(lanemask_gt, ~((2u << get_sreg_laneid()) - 1))
EPEMU_SREG(lanemask_ge, ~((1u << get_sreg_laneid()) - 1))
EPEMU_SREG(clock, clock64())
#undef EPEMU_SREG
#undef EPEMU_SREG3

template <typename = void>
EPEMU_INLINE ::cuda::std::uint64_t get_sreg_clock64() {
    return static_cast<::cuda::std::uint64_t>(clock64());
}
template <typename = void>
EPEMU_INLINE ::cuda::std::uint64_t get_sreg_globaltimer() {
    return epemu_globaltimer();
}

_CCCL_END_NAMESPACE_CUDA_PTX
#include <cuda/std/__cccl/epilogue.h>

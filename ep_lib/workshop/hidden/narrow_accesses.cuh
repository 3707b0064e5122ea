// Counts stores of 16 bytes, and accesses of 4 and 8 bytes, that the learner's header makes with the functions of <ep/memory.cuh>. On the emulator
// a thread's stores arrive in program order, so neither values nor the checker distinguish two 8-byte stores from one of
// 16 bytes.
//
// Include this before the learner's header, and <narrow_accesses_end.cuh> after it.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

__device__ unsigned narrow_loads, narrow_stores, wide_stores;

namespace ep {

#define GRADER_LD(NAME, BITS)                                            \
    EP_DEVICE uint##BITS##_t grader_##NAME(const uint##BITS##_t* from) { \
        atomicAdd(&narrow_loads, 1);                                     \
        return NAME(from);                                               \
    }
#define GRADER_ST(NAME, BITS)                                                \
    EP_DEVICE void grader_##NAME(uint##BITS##_t* to, uint##BITS##_t value) { \
        atomicAdd(&narrow_stores, 1);                                        \
        NAME(to, value);                                                     \
    }
#define GRADER_ALL(BITS)                    \
    GRADER_LD(ld_relaxed_sys_u##BITS, BITS) \
    GRADER_LD(ld_relaxed_gpu_u##BITS, BITS) \
    GRADER_LD(ld_acquire_sys_u##BITS, BITS) \
    GRADER_LD(ld_acquire_gpu_u##BITS, BITS) \
    GRADER_LD(ld_volatile_u##BITS, BITS)    \
    GRADER_ST(st_relaxed_sys_u##BITS, BITS) \
    GRADER_ST(st_relaxed_gpu_u##BITS, BITS) \
    GRADER_ST(st_release_sys_u##BITS, BITS) \
    GRADER_ST(st_release_gpu_u##BITS, BITS) \
    GRADER_ST(st_volatile_u##BITS, BITS)

GRADER_ALL(32)
GRADER_ALL(64)

EP_DEVICE void grader_st_relaxed_sys_u64x2(uint64_t* to, uint64_t first, uint64_t second) {
    atomicAdd(&wide_stores, 1);
    st_relaxed_sys_u64x2(to, first, second);
}

#undef GRADER_ALL
#undef GRADER_ST
#undef GRADER_LD

}  // namespace ep

#define ld_relaxed_sys_u32 grader_ld_relaxed_sys_u32
#define ld_relaxed_gpu_u32 grader_ld_relaxed_gpu_u32
#define ld_acquire_sys_u32 grader_ld_acquire_sys_u32
#define ld_acquire_gpu_u32 grader_ld_acquire_gpu_u32
#define ld_volatile_u32 grader_ld_volatile_u32
#define st_relaxed_sys_u32 grader_st_relaxed_sys_u32
#define st_relaxed_gpu_u32 grader_st_relaxed_gpu_u32
#define st_release_sys_u32 grader_st_release_sys_u32
#define st_release_gpu_u32 grader_st_release_gpu_u32
#define st_volatile_u32 grader_st_volatile_u32
#define st_relaxed_sys_u64x2 grader_st_relaxed_sys_u64x2
#define ld_relaxed_sys_u64 grader_ld_relaxed_sys_u64
#define ld_relaxed_gpu_u64 grader_ld_relaxed_gpu_u64
#define ld_acquire_sys_u64 grader_ld_acquire_sys_u64
#define ld_acquire_gpu_u64 grader_ld_acquire_gpu_u64
#define ld_volatile_u64 grader_ld_volatile_u64
#define st_relaxed_sys_u64 grader_st_relaxed_sys_u64
#define st_relaxed_gpu_u64 grader_st_relaxed_gpu_u64
#define st_release_sys_u64 grader_st_release_sys_u64
#define st_release_gpu_u64 grader_st_release_gpu_u64
#define st_volatile_u64 grader_st_volatile_u64

// The CUDA environment of a kernel for g++ and clang++: force-included (as a precompiled header) before the user's own
// source, which then compiles unchanged.
//
// Order matters. System and NVIDIA headers come first, while CUDA's keywords still mean what those headers expect;
// the keywords get the emulator's meaning last, just before the user's first line.
#pragma once

#include <string.h>

// For NVIDIA's headers below, which cast bits by std::memcpy.
namespace std {
inline __attribute__((always_inline)) void* epemu_move_bits(void* to, const void* from, size_t bytes) {
    return __builtin_memcpy(to, from, bytes);
}
}  // namespace std

// memcpy and memmove as calls that the runtime sees: g++ would turn short copies into moves without instrumentation.
// They come before headers whose templates use them: std::copy, std::char_traits.
#define __builtin_memcpy(...) memcpy(__VA_ARGS__)
#define __builtin_memmove(...) memmove(__VA_ARGS__)
#define __builtin_memset(...) memset(__VA_ARGS__)

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

// The rest of the C++ library takes a third of a small kernel's compilation, and few kernels use it: ep_lib/jit/gxx.py
// detects those. It cannot come later: <memory> and <string> use __attribute__((__noinline__)), which the macro below
// would break.
#ifdef EP_EMULATOR_CPP_LIBRARY
#include <algorithm>
#include <memory>
#include <string>
#endif

// A user's <cooperative_groups.h> must not reach NVIDIA's, which is empty for a host compiler: ours replaces it.
#define _COOPERATIVE_GROUPS_H_
// <device_launch_parameters.h> would declare threadIdx and the like as variables.
#define __DEVICE_LAUNCH_PARAMETERS_H__
// <device_functions.h> would redeclare these functions.
#define __DEVICE_FUNCTIONS_H__

// NVIDIA's own types and conversions, host paths: bit-exact with the device. cuda_runtime.h brings dim3, the vector
// types and their make_ functions; it is included here so that a user's #include of it changes nothing.
#include <cuda_runtime.h>
#include <nv/target>
// For host compilers the conversions are functions ("static __attribute__((unused))") that call memcpy. Inlined, with
// moves instead, they work in registers, as on a GPU, and make no memory accesses.
#define memcpy epemu_move_bits
#define unused unused, always_inline
#include <cuda_fp16.h>
// NVIDIA's bfloat16 minimum and maximum treat -0 as 0: half.h replaces them.
#define __hmax_nan epemu_host_hmax_nan
#define __hmin_nan epemu_host_hmin_nan
#define __hmax2_nan epemu_host_hmax2_nan
#define __hmin2_nan epemu_host_hmin2_nan
#include <cuda_bf16.h>
#undef __hmax_nan
#undef __hmin_nan
#undef __hmax2_nan
#undef __hmin2_nan
#include <cuda_fp8.h>
#undef memcpy
#undef unused

#include <ep_emulator/abi.h>

// ---- function and variable keywords ---------------------------------------------------------------------------
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __grid_constant__
#undef __launch_bounds__
#undef __maxnreg__
#undef __cluster_dims__
#undef __block_size__
#undef __forceinline__
#undef __noinline__
#undef __inline_hint__
#undef __nv_pure__

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)  // clusters run as single blocks; their own functions are missing, so a use is an error
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline_hint__
#define __nv_pure__ __attribute__((pure))

// A block's shared memory: the runtime gives every block an area of its own, and the kernel's __tls_get_addr returns
// addresses inside it. `thread_local` in a function is static, and `extern` names dynamic shared memory, as in CUDA.
#define __shared__ thread_local

#include <ep_emulator/atomics.h>
#include <ep_emulator/nv_atomics.h>
#include <ep_emulator/builtins.h>
#include <ep_emulator/cache.h>
#include <ep_emulator/cuda_pipeline.h>
#include <ep_emulator/cooperative_groups.h>
#include <ep_emulator/half.h>
#include <ep_emulator/integer.h>
#include <ep_emulator/math.h>
#include <ep_emulator/simd.h>
#include <ep_emulator/unsupported.h>
#include <ep_emulator/warp.h>

// ---- text and ends: last, since they are macros with names of the C library -----------------------------------
// Every <assert.h>, whenever included, ends in __assert_fail.
#define __assert_fail epemu_assert_fail
// Returns the number of its arguments, as CUDA's does. A function-like macro leaves `#include <cstdio>`, `&printf` and
// __attribute__((format(printf, ...))) alone.
template <typename... Arguments>
EPEMU_INLINE int epemu_print(const char* format, Arguments... arguments) {
    epemu_printf(format, arguments...);
    return sizeof...(Arguments);
}
#define printf(...) epemu_print(__VA_ARGS__)
namespace std {
using ::epemu_free;
using ::epemu_malloc;
using ::epemu_print;  // std::printf(...)
}  // namespace std
// In a kernel these use the device's heap. So do `new` and `delete` (ep_lib/jit/gxx.py).
#define malloc(...) epemu_malloc(__VA_ARGS__)
#define free(...) epemu_free(__VA_ARGS__)

// CUDA lets alignas follow __shared__, C++ does not let it follow thread_local; a GNU attribute may stand anywhere.
// Like alignas, the template takes a type or a constant.
namespace ep_emulator {
template <typename T>
constexpr size_t alignment() {
    return alignof(T);
}
template <size_t N>
constexpr size_t alignment() {
    return N == 0 ? 1 : N;
}
}  // namespace ep_emulator
#define alignas(...) __attribute__((aligned(ep_emulator::alignment<__VA_ARGS__>())))

// CUDA features that the emulator lacks: names that stop the compilation with a reason, where plain C++ would print
// pages of errors. Inline PTX and what needs it (TMA, mbarrier, tensor cores) cannot be caught here: the assembler
// complains, or <ep/platform.cuh> keeps it away.
#pragma once
#include <ep_emulator/builtins.h>

namespace ep_emulator {
template <typename...>
constexpr bool kNever = false;
}

// Functions whose call ends the compilation with this text, unless the compiler proves the call dead.
#define EPEMU_UNSUPPORTED(name, why)                                                             \
    template <typename... Arguments>                                                             \
    EPEMU_INLINE int name(Arguments...) {                                                        \
        static_assert(ep_emulator::kNever<Arguments...>, "the emulator has no " #name ": " why); \
        return 0;                                                                                \
    }

// Removed from CUDA for sm_70 and later: threads of a warp no longer move in lockstep.
EPEMU_UNSUPPORTED(__shfl, "use __shfl_sync")
EPEMU_UNSUPPORTED(__shfl_up, "use __shfl_up_sync")
EPEMU_UNSUPPORTED(__shfl_down, "use __shfl_down_sync")
EPEMU_UNSUPPORTED(__shfl_xor, "use __shfl_xor_sync")
EPEMU_UNSUPPORTED(__any, "use __any_sync")
EPEMU_UNSUPPORTED(__all, "use __all_sync")
EPEMU_UNSUPPORTED(__ballot, "use __ballot_sync")

#define EPEMU_NO_CLUSTERS(name) \
    "the emulator has no " name ": thread-block clusters are not emulated; use blocks and atomics in global memory"
EPEMU_UNSUPPORTED(__cluster_barrier_arrive,
                  "thread-block clusters are not emulated; use blocks and atomics in global memory")
EPEMU_UNSUPPORTED(__cluster_barrier_wait,
                  "thread-block clusters are not emulated; use blocks and atomics in global memory")
EPEMU_UNSUPPORTED(__cluster_map_shared_rank,
                  "thread-block clusters are not emulated; use blocks and atomics in global memory")
EPEMU_UNSUPPORTED(__clusterIdx, "thread-block clusters are not emulated; use blocks and atomics in global memory")
EPEMU_UNSUPPORTED(__clusterDim, "thread-block clusters are not emulated; use blocks and atomics in global memory")
#undef EPEMU_UNSUPPORTED

// Textures and surfaces: templates over what they fetch, called as tex2D<float4>(object, x, y), or
// surf2Dread(&value, object, x, y).
#define EPEMU_UNSUPPORTED_FETCH(name)                                                                         \
    template <typename T = void, typename... Arguments>                                                       \
    EPEMU_INLINE T name(Arguments...) {                                                                       \
        static_assert(ep_emulator::kNever<T>,                                                                 \
                      "the emulator has no " #name ": textures and surfaces are not emulated; use an array"); \
        return T();                                                                                           \
    }
EPEMU_UNSUPPORTED_FETCH(tex1D)
EPEMU_UNSUPPORTED_FETCH(tex1Dfetch)
EPEMU_UNSUPPORTED_FETCH(tex2D)
EPEMU_UNSUPPORTED_FETCH(tex2DLod)
EPEMU_UNSUPPORTED_FETCH(tex3D)
EPEMU_UNSUPPORTED_FETCH(surf1Dread)
EPEMU_UNSUPPORTED_FETCH(surf2Dread)
EPEMU_UNSUPPORTED_FETCH(surf3Dread)
EPEMU_UNSUPPORTED_FETCH(surf1Dwrite)
EPEMU_UNSUPPORTED_FETCH(surf2Dwrite)
EPEMU_UNSUPPORTED_FETCH(surf3Dwrite)
#undef EPEMU_UNSUPPORTED_FETCH

// Tensor cores (<mma.h> is empty for a host compiler).
namespace nvcuda {
namespace wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
    static_assert(ep_emulator::kNever<T>,
                  "the emulator has no nvcuda::wmma: tensor cores are not emulated; multiply with plain code");
};
}  // namespace wmma
}  // namespace nvcuda

// Indices, block barriers, fences, clocks, traps, address spaces.
#pragma once
#include <ep_emulator/abi.h>

// Inlined, so that a fault inside is reported in the caller's function; debuggers and addr2line -i give its line.
#define EPEMU_INLINE inline __attribute__((always_inline, artificial, unused))
// CUDA's C-named functions that glibc declares too (clock, __expf): this translation unit uses our definition.
#define EPEMU_C_INLINE extern "C" inline __attribute__((always_inline, artificial, unused))

// ---- indices --------------------------------------------------------------------------------------------------
// Variables of the runtime, which changes them when it switches threads. They are const, so that the compiler keeps
// values it has read, and g++ does not instrument reads (which it would for dim3, a type with a constructor).
struct EpEmulatorDim {
    unsigned x, y, z;
    constexpr operator dim3() const { return dim3(x, y, z); }
};
#define EPEMU_INDEX(type, name, symbol) extern "C" __attribute__((visibility("default"))) const type name asm(#symbol);
EPEMU_INDEX(uint3, threadIdx, epemu_thread_idx)
EPEMU_INDEX(uint3, blockIdx, epemu_block_idx)
EPEMU_INDEX(EpEmulatorDim, blockDim, epemu_block_dim)
EPEMU_INDEX(EpEmulatorDim, gridDim, epemu_grid_dim)
#undef EPEMU_INDEX

static constexpr int warpSize = 32;

// ---- block barriers -------------------------------------------------------------------------------------------
// The default argument is evaluated at the call: its line and column identify the barrier.
#ifdef __clang__
#define EPEMU_SITE (__builtin_LINE() << 10 | __builtin_COLUMN())
#else
namespace std {
struct source_location {
    struct __impl {  // filled in by g++; <source_location> itself is C++20's
        const char* _M_file_name;
        const char* _M_function_name;
        unsigned _M_line, _M_column;
    };
};
}  // namespace std
namespace ep_emulator {
constexpr unsigned site(const std::source_location::__impl& call) { return call._M_line << 10 | call._M_column; }
}  // namespace ep_emulator
#define EPEMU_SITE ep_emulator::site(*static_cast<const std::source_location::__impl*>(__builtin_source_location()))
#endif
EPEMU_INLINE void __syncthreads(unsigned site = EPEMU_SITE) { epemu_syncthreads(EPEMU_BARRIER, 0, site); }
EPEMU_INLINE int __syncthreads_count(int predicate, unsigned site = EPEMU_SITE) {
    return epemu_syncthreads(EPEMU_BARRIER_COUNT, predicate != 0, site);
}
EPEMU_INLINE int __syncthreads_and(int predicate, unsigned site = EPEMU_SITE) {
    return epemu_syncthreads(EPEMU_BARRIER_AND, predicate != 0, site);
}
EPEMU_INLINE int __syncthreads_or(int predicate, unsigned site = EPEMU_SITE) {
    return epemu_syncthreads(EPEMU_BARRIER_OR, predicate != 0, site);
}

// PTX's barriers by number: 0 is that of __syncthreads. `threads`: how many take part, a multiple of the warp's size.
EPEMU_INLINE void __barrier_sync(unsigned id, unsigned site = EPEMU_SITE) {
    if (id == 0)
        epemu_syncthreads(EPEMU_BARRIER, 0, site);
    else
        epemu_named_barrier(id, 0);
}
EPEMU_INLINE void __barrier_sync_count(unsigned id, unsigned threads) { epemu_named_barrier(id, threads); }

// Programmatic dependent launches, which ep_lib does not use: the previous kernel has ended, and no kernel waits for a
// trigger.
EPEMU_INLINE void cudaGridDependencySynchronize() {}
EPEMU_INLINE void cudaTriggerProgrammaticLaunchCompletion() {}

// ---- fences ---------------------------------------------------------------------------------------------------
EPEMU_INLINE void __threadfence_block() { epemu_fence(EPEMU_SEQ_CST, EPEMU_SCOPE_BLOCK); }
EPEMU_INLINE void __threadfence() { epemu_fence(EPEMU_SEQ_CST, EPEMU_SCOPE_DEVICE); }
EPEMU_INLINE void __threadfence_system() { epemu_fence(EPEMU_SEQ_CST, EPEMU_SCOPE_SYSTEM); }

// ---- time -----------------------------------------------------------------------------------------------------
EPEMU_C_INLINE clock_t clock() noexcept { return static_cast<clock_t>(epemu_clock64()); }
EPEMU_INLINE long long clock64() { return epemu_clock64(); }
EPEMU_INLINE void __nanosleep(unsigned nanoseconds) { epemu_nanosleep(nanoseconds); }
// CUDA C++ has no function for %globaltimer (kernels use PTX); <ep/memory.cuh> has ep::globaltimer_ns(). This is the
// name under which clang knows it.
EPEMU_INLINE unsigned long long __nvvm_read_ptx_sreg_globaltimer() { return epemu_globaltimer(); }

// ---- ends -----------------------------------------------------------------------------------------------------
EPEMU_INLINE void __trap() { epemu_trap("__trap()"); }
EPEMU_INLINE void __brkpt() { epemu_trap("__brkpt()"); }
#define __brkpoint() __brkpt()
EPEMU_INLINE void __prof_trigger(int) {}

// A false assumption is a bug: the emulator reports it, where a GPU would continue with wrong values.
#define __builtin_assume(condition) ((condition) ? (void)0 : epemu_trap("__builtin_assume(" #condition ") is false"))
#define __assume(condition) ((condition) ? (void)0 : epemu_trap("__assume(" #condition ") is false"))
EPEMU_INLINE void __nv_assume_unreachable() { epemu_trap("unreachable code reached"); }

// ---- address spaces -------------------------------------------------------------------------------------------
// Shared memory is one area a block; an address in the shared space is the offset in it. The areas are found by
// distance: no block has more than the 228 KiB that an SM has.
extern "C" char* epemu_shared_base;

namespace ep_emulator {
constexpr size_t kMaxSharedBytes = 228 * 1024;
// Not instrumented: the variable belongs to the runtime.
__attribute__((noinline, no_sanitize("thread"))) inline char* shared_base() { return epemu_shared_base; }
}  // namespace ep_emulator

EPEMU_INLINE size_t __cvta_generic_to_shared(const void* pointer) {
    return static_cast<size_t>(static_cast<const char*>(pointer) - ep_emulator::shared_base());
}
EPEMU_INLINE void* __cvta_shared_to_generic(size_t offset) { return ep_emulator::shared_base() + offset; }
EPEMU_INLINE size_t __cvta_generic_to_global(const void* pointer) { return reinterpret_cast<size_t>(pointer); }
EPEMU_INLINE void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
EPEMU_INLINE size_t __cvta_generic_to_local(const void* pointer) { return reinterpret_cast<size_t>(pointer); }
EPEMU_INLINE void* __cvta_local_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
EPEMU_INLINE size_t __cvta_generic_to_constant(const void* pointer) { return reinterpret_cast<size_t>(pointer); }
EPEMU_INLINE void* __cvta_constant_to_generic(size_t address) { return reinterpret_cast<void*>(address); }

EPEMU_INLINE unsigned __isShared(const void* pointer) {
    return __cvta_generic_to_shared(pointer) < ep_emulator::kMaxSharedBytes;
}
// A thread's stack is small: addresses near this call's frame are local memory.
EPEMU_INLINE unsigned __isLocal(const void* pointer) {
    constexpr ptrdiff_t kStackBytes = 16 * 1024;
    const ptrdiff_t distance = static_cast<const char*>(pointer) - static_cast<char*>(__builtin_frame_address(0));
    return distance > -kStackBytes && distance < kStackBytes;
}
EPEMU_INLINE unsigned __isGlobal(const void* pointer) { return !__isShared(pointer) && !__isLocal(pointer); }

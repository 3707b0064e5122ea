// The scope of cuda::atomic_thread_fence. On a host libcu++ ignores it; this header passes it to the emulator just
// before the fence.
//
// Found before libcu++'s own header of this name, which is included and does the rest: a macro changes its call of the
// fence without a scope (one argument), not its declaration (two arguments).
#pragma once
#include <ep_emulator/abi.h>

#include <cuda/std/atomic>

namespace ep_emulator {
inline int scope_of(int thread_scope) {
    return thread_scope == cuda::std::thread_scope_system   ? EPEMU_SCOPE_SYSTEM
           : thread_scope == cuda::std::thread_scope_device ? EPEMU_SCOPE_DEVICE
                                                            : EPEMU_SCOPE_BLOCK;
}
}  // namespace ep_emulator

#define EPEMU_THIRD(first, second, third, ...) third
#define EPEMU_FENCE_DECLARED(order, scope) atomic_thread_fence(order, scope)
#define EPEMU_FENCE_CALLED(order) atomic_thread_fence((epemu_next_scope(ep_emulator::scope_of(_Scope)), order))
#define atomic_thread_fence(...) EPEMU_THIRD(__VA_ARGS__, EPEMU_FENCE_DECLARED, EPEMU_FENCE_CALLED, )(__VA_ARGS__)
#include_next <cuda/__atomic/atomic.h>
#undef atomic_thread_fence
#undef EPEMU_FENCE_CALLED
#undef EPEMU_FENCE_DECLARED
#undef EPEMU_THIRD

// cuda::memcpy_async to a cuda::barrier, in place of libcu++'s header, which host compilers find empty. The first thread
// of the group copies, at once.
#pragma once
#include <ep_emulator/builtins.h>

#include <cuda/__barrier/barrier.h>
#include <cuda/__memcpy_async/memcpy_async_barrier.h>

namespace cuda {

template <typename Group, typename To, typename From, typename Size, thread_scope Scope, typename Completion>
EPEMU_INLINE async_contract_fulfillment memcpy_async(const Group& group, To* to, const From* from, Size bytes,
                                                     barrier<Scope, Completion>& arrives) {
    using T = std::conditional_t<std::is_same_v<To, From> && !std::is_void_v<To>, To, char>;
    return __memcpy_async_barrier(group, reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), bytes, arrives);
}
template <typename To, typename From, typename Size, thread_scope Scope, typename Completion>
EPEMU_INLINE async_contract_fulfillment memcpy_async(To* to, const From* from, Size bytes,
                                                     barrier<Scope, Completion>& arrives) {
    return memcpy_async(__single_thread_group{}, to, from, bytes, arrives);
}

}  // namespace cuda

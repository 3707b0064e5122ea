// How cuda::barrier, cuda::atomic::wait and cuda::counting_semaphore poll, on the emulator. Found before libcu++'s own
// header of this name, which backs off by the host's clock: that would put the only thread that runs fibers to sleep,
// and make a schedule depend on more than its seed.
#pragma once
#define _CUDA_STD___THREAD_THREADING_SUPPORT_H
#include <ep_emulator/abi.h>

#if __has_include(<cuda/std/__chrono/duration.h>)
#include <cuda/std/__chrono/duration.h>
#else  // before CUDA 13.1
#include <cuda/std/chrono>
#endif

#include <cuda/std/__cccl/prologue.h>
_CCCL_BEGIN_NAMESPACE_CUDA_STD

#define _LIBCUDACXX_POLLING_COUNT 0  // looks without a pause, before the function below

inline void __cccl_thread_yield_processor() {}
inline void __cccl_thread_yield() {}
inline void __cccl_thread_sleep_for(chrono::nanoseconds time) { epemu_nanosleep(static_cast<unsigned>(time.count())); }

template <class Function>
inline bool __cccl_thread_poll_with_backoff(Function&& done, chrono::nanoseconds limit = chrono::nanoseconds::zero()) {
    if (limit == chrono::nanoseconds::zero()) {
        while (!done()) {
        }
        return true;
    }
    const uint64_t end = epemu_globaltimer() + static_cast<uint64_t>(limit.count());
    while (!done()) {
        if (epemu_globaltimer() > end) return false;
    }
    return true;
}

_CCCL_END_NAMESPACE_CUDA_STD
#include <cuda/std/__cccl/epilogue.h>

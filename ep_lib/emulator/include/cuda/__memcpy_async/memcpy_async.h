// cuda::memcpy_async to a cuda::barrier, which libcu++ keeps from host compilers. Its first thread copies, at once.
#pragma once
#include <cuda/__barrier/barrier.h>
#include <cuda/__barrier/barrier_block_scope.h>
#include <cuda/__barrier/barrier_thread_scope.h>
#if __has_include(<cuda/__memcpy_async/check_preconditions.h>)
#include <cuda/__memcpy_async/check_preconditions.h>
#endif
#include <cuda/__memcpy_async/memcpy_async_barrier.h>

#pragma push_macro("_CCCL_CUDA_COMPILATION")
#undef _CCCL_CUDA_COMPILATION
#define _CCCL_CUDA_COMPILATION() 1
#include_next <cuda/__memcpy_async/memcpy_async.h>
#pragma pop_macro("_CCCL_CUDA_COMPILATION")

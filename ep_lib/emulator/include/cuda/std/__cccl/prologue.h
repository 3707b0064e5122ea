// The CCCL of CUDA 12 and 13.0 has no header of this name, and other names for its namespaces: this is for the
// emulator's own headers of the cuda/ folder. Without an include guard, as CCCL's.
#if __has_include_next(<cuda/std/__cccl/prologue.h>)
#include_next <cuda/std/__cccl/prologue.h>
#else
#include <cuda/std/detail/__config>
#ifndef _CCCL_BEGIN_NAMESPACE_CUDA_STD
#define _CCCL_BEGIN_NAMESPACE_CUDA_STD _LIBCUDACXX_BEGIN_NAMESPACE_STD
#define _CCCL_END_NAMESPACE_CUDA_STD _LIBCUDACXX_END_NAMESPACE_STD
#define _CCCL_BEGIN_NAMESPACE_CUDA_DEVICE _LIBCUDACXX_BEGIN_NAMESPACE_CUDA_DEVICE
#define _CCCL_END_NAMESPACE_CUDA_DEVICE _LIBCUDACXX_END_NAMESPACE_CUDA_DEVICE
#define _CCCL_BEGIN_NAMESPACE_CUDA_PTX _LIBCUDACXX_BEGIN_NAMESPACE_CUDA_PTX
#define _CCCL_END_NAMESPACE_CUDA_PTX _LIBCUDACXX_END_NAMESPACE_CUDA_PTX
#endif
#endif

// CUDA's macros as a kernel's own code sees them, and NV_IF_TARGET, which uses them. CUDA's headers see a host
// compiler: ep_lib/jit/gxx.py puts host_view.h before each of them and this file after it.
#define __CUDACC__ 1
#define __CUDA_ARCH__ EPEMU_CUDA_ARCH
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
#define __CUDACC_VER_BUILD__ 0
#undef _NV__TARGET_MACROS
#include <nv/detail/__target_macros>

// What a kernel's own code sees of CUDA's macros, and of NV_IF_TARGET, which is made of them. CUDA's headers are for the
// host compiler here: host_view.h goes before each of them, and this one behind it (ep_lib/jit/gxx.py).
#define __CUDACC__ 1
#define __CUDA_ARCH__ EPEMU_CUDA_ARCH
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
#define __CUDACC_VER_BUILD__ 0
#undef _NV__TARGET_MACROS
#include <nv/detail/__target_macros>

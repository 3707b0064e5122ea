// See device_view.h.
#undef __CUDACC__
#undef __CUDA_ARCH__
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDACC_VER_BUILD__
#undef _NV__TARGET_MACROS
#include <nv/detail/__target_macros>

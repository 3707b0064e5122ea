// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
#include <cuda/std/cstddef>
using cuda::std::max_align_t;
using cuda::std::ptrdiff_t;
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

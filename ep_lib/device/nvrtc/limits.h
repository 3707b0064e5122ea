// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
#include <cuda/std/climits>

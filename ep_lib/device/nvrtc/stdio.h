// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
// printf is built in.

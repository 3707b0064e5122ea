// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
// malloc, free and abs are built in.

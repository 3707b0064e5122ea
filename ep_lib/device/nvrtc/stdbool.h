// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
// bool, true and false are the language's own.

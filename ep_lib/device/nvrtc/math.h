// For NVRTC, which has no C or C++ library; the emulator uses the real header.
#pragma once
// The functions are built in.
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

// The C and C++ headers that kernels include and NVRTC, which has no library of its own, lacks. ep_lib/jit/toolkit.py
// makes a file of each part, for NVRTC alone: nvcc and the emulator use the real headers.

// ==== algorithm
#if __has_include(<cuda/std/algorithm>)
#include <cuda/std/algorithm>
#else  // CUDA 13.0 and before: the header was not public yet
#include <cuda/std/__algorithm/clamp.h>
#include <cuda/std/__algorithm/max.h>
#include <cuda/std/__algorithm/min.h>
#include <cuda/std/utility>
#endif
namespace std {
using namespace cuda::std;
}

// ==== array
#include <cuda/std/array>
namespace std {
using namespace cuda::std;
}

// ==== assert.h
// assert is built in.

// ==== cassert
// assert is built in.

// ==== cfloat
#include <float.h>

// ==== climits
#include <limits.h>

// ==== cmath
#include <cuda/std/cmath>
#include <math.h>
namespace std {
using namespace cuda::std;
}

// ==== cstddef
#include <stddef.h>
namespace std {
using namespace cuda::std;
}

// ==== cstdint
#include <stdint.h>
namespace std {
using namespace cuda::std;
}

// ==== cstdio
// printf is built in.
namespace std {
using ::printf;
}

// ==== cstring
// memcpy and memset are built in.
namespace std {
using ::memcpy;
using ::memset;
}  // namespace std

// ==== cuda_runtime.h
#include_next <cuda_runtime.h>
#include <limits.h>  // as for nvcc
#include <math.h>

// ==== float.h
#include <cuda/std/cfloat>
#ifndef FLT_MAX  // that of CUDA 13.0 includes <float.h> itself
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define DBL_MANT_DIG 53
#define FLT_DIG 6
#define DBL_DIG 15
#define FLT_MIN_EXP (-125)
#define DBL_MIN_EXP (-1021)
#define FLT_MIN_10_EXP (-37)
#define DBL_MIN_10_EXP (-307)
#define FLT_MAX_EXP 128
#define DBL_MAX_EXP 1024
#define FLT_MAX_10_EXP 38
#define DBL_MAX_10_EXP 308
#define FLT_MAX 3.40282346638528859812e+38f
#define DBL_MAX 1.79769313486231570815e+308
#define FLT_EPSILON 1.19209289550781250000e-7f
#define DBL_EPSILON 2.22044604925031308085e-16
#define FLT_MIN 1.17549435082228750797e-38f
#define DBL_MIN 2.22507385850720138309e-308
#define FLT_TRUE_MIN 1.40129846432481707092e-45f
#define DBL_TRUE_MIN 4.94065645841246544177e-324
#define FLT_DECIMAL_DIG 9
#define DBL_DECIMAL_DIG 17
#endif

// ==== initializer_list
#include <cuda/std/initializer_list>
namespace std {
using namespace cuda::std;
}

// ==== limits
#include <cuda/std/limits>
namespace std {
using namespace cuda::std;
}

// ==== limits.h
#include <cuda/std/climits>

// ==== math.h
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

// ==== new
// Placement new is built in.

// ==== stdbool.h
// bool, true and false are the language's own.

// ==== stddef.h
#include <cuda/std/cstddef>
using cuda::std::max_align_t;
using cuda::std::ptrdiff_t;
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

// ==== stdint.h
#include <cuda/std/cstdint>
typedef long ssize_t;  // as <sys/types.h> has them, which g++'s headers include
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define __builtin_clz(x) __clz(x)  // what nvcc takes in kernels of g++'s own functions
#define __builtin_clzll(x) __clzll(x)
#define __builtin_ffs(x) __ffs(x)
#define __builtin_ffsll(x) __ffsll(x)
#define __builtin_memcpy(to, from, size) memcpy(to, from, size)
#define __builtin_popcount(x) __popc(x)
#define __builtin_popcountll(x) __popcll(x)

// ==== stdio.h
// printf is built in.

// ==== stdlib.h
// malloc, free and abs are built in.

// ==== string.h
// memcpy and memset are built in.

// ==== tuple
#include <cuda/std/tuple>
namespace std {
using namespace cuda::std;
}

// ==== type_traits
#include <cuda/std/type_traits>
namespace std {
using namespace cuda::std;
}

// ==== utility
#include <cuda/std/utility>
namespace std {
using namespace cuda::std;
}

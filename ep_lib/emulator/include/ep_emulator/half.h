// The device-only part of cuda_fp16.h and cuda_bf16.h: fused multiply-add, elementary functions, conversions with other
// roundings. NVIDIA's host paths have the rest (arithmetic, comparisons, conversions to nearest).
//
// Elementary functions are computed in float and rounded once; the device's last bit may differ.
#pragma once
#include <ep_emulator/math.h>

// A template with an unused parameter: if a version of NVIDIA's headers has the function for the host, overload
// resolution prefers theirs, which is no template.
#define EPEMU_UNLESS_NVIDIA_HAS_IT \
    template <int = 0>             \
    EPEMU_INLINE

namespace ep_emulator {
EPEMU_INLINE float widen(__half x) { return __half2float(x); }
EPEMU_INLINE float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
EPEMU_INLINE T narrow(double x);
template <>
EPEMU_INLINE __half narrow<__half>(double x) {
    return __double2half(x);
}
template <>
EPEMU_INLINE __nv_bfloat16 narrow<__nv_bfloat16>(double x) {
    return __double2bfloat16(x);
}

// One rounding, as on the device. The product of two 16-bit numbers is exact in double; if the sum is not, its last bit
// is made odd, so that the second rounding gives the same as rounding the exact sum.
template <typename T>
EPEMU_INLINE T fused_multiply_add(T a, T b, T c) {
    const double product = static_cast<double>(widen(a)) * widen(b);
    const double addend = widen(c);
    const double sum = product + addend;
    const double back = sum - product;
    const double lost = (product - (sum - back)) + (addend - back);  // exact: Knuth's two-sum
    if (lost == 0.0 || lost != lost) return narrow<T>(sum);
    long long bits = __double_as_longlong(sum);
    if ((bits & 1) == 0) bits += (lost > 0.0) == (sum > 0.0) ? 1 : -1;
    return narrow<T>(__longlong_as_double(bits));
}
template <typename T>
EPEMU_INLINE T saturated(T x) {
    return narrow<T>(__saturatef(widen(x)));
}
template <typename T>
EPEMU_INLINE T rectified(T x) {
    return widen(x) <= 0.0f ? narrow<T>(0.0) : x;  // -0 gives 0, NaN stays NaN
}
}  // namespace ep_emulator

// ---- fused multiply-add ---------------------------------------------------------------------------------------
#define EPEMU_FMA(T, T2)                                                                                        \
    EPEMU_UNLESS_NVIDIA_HAS_IT T __hfma(T a, T b, T c) { return ep_emulator::fused_multiply_add(a, b, c); }     \
    EPEMU_UNLESS_NVIDIA_HAS_IT T __hfma_sat(T a, T b, T c) { return ep_emulator::saturated(__hfma(a, b, c)); }  \
    EPEMU_UNLESS_NVIDIA_HAS_IT T __hfma_relu(T a, T b, T c) { return ep_emulator::rectified(__hfma(a, b, c)); } \
    EPEMU_UNLESS_NVIDIA_HAS_IT T2 __hfma2(T2 a, T2 b, T2 c) {                                                   \
        return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                                \
    }                                                                                                           \
    EPEMU_UNLESS_NVIDIA_HAS_IT T2 __hfma2_sat(T2 a, T2 b, T2 c) {                                               \
        return T2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));                                        \
    }                                                                                                           \
    EPEMU_UNLESS_NVIDIA_HAS_IT T2 __hfma2_relu(T2 a, T2 b, T2 c) {                                              \
        return T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));                                      \
    }                                                                                                           \
    /* Complex multiply-add of (real, imaginary) pairs. */                                                      \
    EPEMU_UNLESS_NVIDIA_HAS_IT T2 __hcmadd(T2 a, T2 b, T2 c) {                                                  \
        return T2(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));    \
    }
EPEMU_FMA(__half, __half2)
EPEMU_FMA(__nv_bfloat16, __nv_bfloat162)
#undef EPEMU_FMA

// ---- minimum and maximum of bfloat16 where NaN wins: -0 is smaller than 0 ---------------------------------------
#define EPEMU_NAN_WINS(m)                                                           \
    EPEMU_INLINE __nv_bfloat16 __h##m##_nan(__nv_bfloat16 a, __nv_bfloat16 b) {     \
        return __hisnan(a) || __hisnan(b) ? CUDART_NAN_BF16 : __h##m(a, b);         \
    }                                                                               \
    EPEMU_INLINE __nv_bfloat162 __h##m##2_nan(__nv_bfloat162 a, __nv_bfloat162 b) { \
        return __nv_bfloat162(__h##m##_nan(a.x, b.x), __h##m##_nan(a.y, b.y));      \
    }
EPEMU_NAN_WINS(min)
EPEMU_NAN_WINS(max)
#undef EPEMU_NAN_WINS

// ---- elementary functions -------------------------------------------------------------------------------------
#define EPEMU_ELEMENTARY_OF(T, T2, suffix, expression) \
    EPEMU_UNLESS_NVIDIA_HAS_IT T h##suffix(T value) {  \
        const float x = ep_emulator::widen(value);     \
        return ep_emulator::narrow<T>(expression);     \
    }                                                  \
    EPEMU_UNLESS_NVIDIA_HAS_IT T2 h2##suffix(T2 value) { return T2(h##suffix(value.x), h##suffix(value.y)); }
#define EPEMU_ELEMENTARY(suffix, expression)                 \
    EPEMU_ELEMENTARY_OF(__half, __half2, suffix, expression) \
    EPEMU_ELEMENTARY_OF(__nv_bfloat16, __nv_bfloat162, suffix, expression)
EPEMU_ELEMENTARY(sqrt, std::sqrt(static_cast<double>(x)))
EPEMU_ELEMENTARY(rsqrt, 1.0 / std::sqrt(static_cast<double>(x)))
EPEMU_ELEMENTARY(rcp, 1.0 / static_cast<double>(x))
EPEMU_ELEMENTARY(log, logf(x))
EPEMU_ELEMENTARY(log2, log2f(x))
EPEMU_ELEMENTARY(log10, log10f(x))
EPEMU_ELEMENTARY(exp, expf(x))
EPEMU_ELEMENTARY(exp2, exp2f(x))
EPEMU_ELEMENTARY(exp10, exp10f(x))
EPEMU_ELEMENTARY(sin, sinf(x))
EPEMU_ELEMENTARY(cos, cosf(x))
EPEMU_ELEMENTARY(tanh, tanhf(x))
EPEMU_ELEMENTARY(tanh_approx, tanhf(x))
EPEMU_ELEMENTARY(trunc, truncf(x))
EPEMU_ELEMENTARY(ceil, ceilf(x))
EPEMU_ELEMENTARY(floor, floorf(x))
EPEMU_ELEMENTARY(rint, nearbyintf(x))
#undef EPEMU_ELEMENTARY
#undef EPEMU_ELEMENTARY_OF

// ---- conversions with other roundings -------------------------------------------------------------------------
// To integers: exact in float, then rounded as asked; out of range saturates, also to 16 bits.
#define EPEMU_TO_INTEGER(T, from, I, to)                                      \
    EPEMU_UNLESS_NVIDIA_HAS_IT I __##from##2##to##_rn(T x) {                  \
        return ep_emulator::to_integer<I>(nearbyintf(ep_emulator::widen(x))); \
    }                                                                         \
    EPEMU_UNLESS_NVIDIA_HAS_IT I __##from##2##to##_rd(T x) {                  \
        return ep_emulator::to_integer<I>(floorf(ep_emulator::widen(x)));     \
    }                                                                         \
    EPEMU_UNLESS_NVIDIA_HAS_IT I __##from##2##to##_ru(T x) {                  \
        return ep_emulator::to_integer<I>(ceilf(ep_emulator::widen(x)));      \
    }
#define EPEMU_TO_INTEGERS(T, from)                    \
    EPEMU_TO_INTEGER(T, from, short, short)           \
    EPEMU_TO_INTEGER(T, from, unsigned short, ushort) \
    EPEMU_TO_INTEGER(T, from, int, int)               \
    EPEMU_TO_INTEGER(T, from, unsigned, uint)         \
    EPEMU_TO_INTEGER(T, from, long long, ll)          \
    EPEMU_TO_INTEGER(T, from, unsigned long long, ull)
EPEMU_TO_INTEGERS(__half, half)
EPEMU_TO_INTEGERS(__nv_bfloat16, bfloat16)
#undef EPEMU_TO_INTEGERS
#undef EPEMU_TO_INTEGER

// Integers to bfloat16: two roundings in one direction (integer to float, float to bfloat16) equal one.
#define EPEMU_TO_BFLOAT16(I, from, wide)                                   \
    EPEMU_UNLESS_NVIDIA_HAS_IT __nv_bfloat16 __##from##2bfloat16_rz(I x) { \
        return __float2bfloat16_rz(__##wide##2float_rz(x));                \
    }                                                                      \
    EPEMU_UNLESS_NVIDIA_HAS_IT __nv_bfloat16 __##from##2bfloat16_rd(I x) { \
        return __float2bfloat16_rd(__##wide##2float_rd(x));                \
    }                                                                      \
    EPEMU_UNLESS_NVIDIA_HAS_IT __nv_bfloat16 __##from##2bfloat16_ru(I x) { \
        return __float2bfloat16_ru(__##wide##2float_ru(x));                \
    }
EPEMU_TO_BFLOAT16(short, short, int)
EPEMU_TO_BFLOAT16(unsigned short, ushort, uint)
EPEMU_TO_BFLOAT16(int, int, int)
EPEMU_TO_BFLOAT16(unsigned, uint, uint)
EPEMU_TO_BFLOAT16(long long, ll, ll)
EPEMU_TO_BFLOAT16(unsigned long long, ull, ull)
#undef EPEMU_TO_BFLOAT16

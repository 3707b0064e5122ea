// Floating-point intrinsics and the mathematical functions that CUDA has beyond C's <math.h>.
//
// Correctly rounded operations (__fadd_rn, __fmaf_rz, ...) give the device's bits. The fast approximations (__expf,
// __sinf, __fdividef, rsqrtf, ...) are computed to full precision here: a GPU's last bits may differ.
#pragma once
#include <cfenv>

#include <ep_emulator/warp.h>  // to_bits, from_bits

// ---- bit casts ------------------------------------------------------------------------------------------------
EPEMU_INLINE int __float_as_int(float x) { return ep_emulator::from_bits<int>(ep_emulator::to_bits(x)); }
EPEMU_INLINE unsigned __float_as_uint(float x) { return ep_emulator::from_bits<unsigned>(ep_emulator::to_bits(x)); }
EPEMU_INLINE float __int_as_float(int x) { return ep_emulator::from_bits<float>(ep_emulator::to_bits(x)); }
EPEMU_INLINE float __uint_as_float(unsigned x) { return ep_emulator::from_bits<float>(ep_emulator::to_bits(x)); }
EPEMU_INLINE long long __double_as_longlong(double x) {
    return ep_emulator::from_bits<long long>(ep_emulator::to_bits(x));
}
EPEMU_INLINE double __longlong_as_double(long long x) {
    return ep_emulator::from_bits<double>(ep_emulator::to_bits(x));
}
EPEMU_INLINE int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
EPEMU_INLINE int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
EPEMU_INLINE double __hiloint2double(int hi, int lo) {
    return __longlong_as_double(static_cast<long long>(
        static_cast<unsigned long long>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo)));
}

// ---- arithmetic with a stated rounding ------------------------------------------------------------------------
// _rn is the processor's own mode. The others switch the mode around one operation: in a function of its own, without
// instrumentation (no other CUDA thread may run in between) and on volatile copies (so that nothing moves out).
#define EPEMU_DIRECTED(name, T, parameters, expression)                         \
    __attribute__((noinline, no_sanitize("thread"))) inline T name parameters { \
        const int before = fegetround();                                        \
        fesetround(EPEMU_MODE);                                                 \
        volatile T result = static_cast<T>(expression);                         \
        fesetround(before);                                                     \
        return result;                                                          \
    }
// EPEMU_IN: how a parameter is passed; EPEMU_TERM: a second term.
#define EPEMU_FLOAT_OPERATIONS(r)                                                                              \
    EPEMU_DIRECTED(__fadd_##r, float, (EPEMU_IN float x, EPEMU_IN float y), x + EPEMU_TERM(y))                 \
    EPEMU_DIRECTED(__fsub_##r, float, (EPEMU_IN float x, EPEMU_IN float y), x - EPEMU_TERM(y))                 \
    EPEMU_DIRECTED(__fmul_##r, float, (EPEMU_IN float x, EPEMU_IN float y), x* y)                              \
    EPEMU_DIRECTED(__fdiv_##r, float, (EPEMU_IN float x, EPEMU_IN float y), x / y)                             \
    EPEMU_DIRECTED(__fmaf_##r, float, (EPEMU_IN float x, EPEMU_IN float y, EPEMU_IN float z), fmaf(x, y, z))   \
    EPEMU_DIRECTED(__frcp_##r, float, (EPEMU_IN float x), 1.0f / x)                                            \
    EPEMU_DIRECTED(__fsqrt_##r, float, (EPEMU_IN float x), sqrtf(x))                                           \
    EPEMU_DIRECTED(__dadd_##r, double, (EPEMU_IN double x, EPEMU_IN double y), x + EPEMU_TERM(y))              \
    EPEMU_DIRECTED(__dsub_##r, double, (EPEMU_IN double x, EPEMU_IN double y), x - EPEMU_TERM(y))              \
    EPEMU_DIRECTED(__dmul_##r, double, (EPEMU_IN double x, EPEMU_IN double y), x* y)                           \
    EPEMU_DIRECTED(__ddiv_##r, double, (EPEMU_IN double x, EPEMU_IN double y), x / y)                          \
    EPEMU_DIRECTED(__fma_##r, double, (EPEMU_IN double x, EPEMU_IN double y, EPEMU_IN double z), fma(x, y, z)) \
    EPEMU_DIRECTED(__drcp_##r, double, (EPEMU_IN double x), 1.0 / x)                                           \
    EPEMU_DIRECTED(__dsqrt_##r, double, (EPEMU_IN double x), sqrt(x))                                          \
    EPEMU_DIRECTED(__double2float_##r, float, (EPEMU_IN double x), x)                                          \
    EPEMU_DIRECTED(__int2float_##r, float, (EPEMU_IN int x), x)                                                \
    EPEMU_DIRECTED(__uint2float_##r, float, (EPEMU_IN unsigned x), x)                                          \
    EPEMU_DIRECTED(__ll2float_##r, float, (EPEMU_IN long long x), x)                                           \
    EPEMU_DIRECTED(__ull2float_##r, float, (EPEMU_IN unsigned long long x), x)                                 \
    EPEMU_DIRECTED(__ll2double_##r, double, (EPEMU_IN long long x), x)                                         \
    EPEMU_DIRECTED(__ull2double_##r, double, (EPEMU_IN unsigned long long x), x)
#define EPEMU_IN volatile
#define EPEMU_TERM(y) y
#define EPEMU_MODE FE_TOWARDZERO
EPEMU_FLOAT_OPERATIONS(rz)
#undef EPEMU_MODE
#define EPEMU_MODE FE_UPWARD
EPEMU_FLOAT_OPERATIONS(ru)
#undef EPEMU_MODE
#define EPEMU_MODE FE_DOWNWARD
EPEMU_FLOAT_OPERATIONS(rd)
#undef EPEMU_MODE

// To nearest, ties to even: plain arithmetic, kept from becoming a fused multiply-add. The operands are separated as
// well, so that no shared product is fused.
#undef EPEMU_IN
#undef EPEMU_TERM
#undef EPEMU_DIRECTED
namespace ep_emulator {
template <typename T>
EPEMU_INLINE T apart(T value) {
#ifdef __x86_64__
    if constexpr (std::is_floating_point<T>::value) asm("" : "+x"(value));
#else
    if constexpr (std::is_floating_point<T>::value) asm("" : "+w"(value));
#endif
    return value;
}
}  // namespace ep_emulator
#define EPEMU_DIRECTED(name, T, parameters, expression)        \
    EPEMU_INLINE T name parameters {                           \
        x = ep_emulator::apart(x);                             \
        return ep_emulator::apart(static_cast<T>(expression)); \
    }
#define EPEMU_IN
#define EPEMU_TERM(y) ep_emulator::apart(y)
EPEMU_FLOAT_OPERATIONS(rn)
#undef EPEMU_IN
#undef EPEMU_TERM
#undef EPEMU_DIRECTED
#undef EPEMU_FLOAT_OPERATIONS

EPEMU_INLINE float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
EPEMU_INLINE double __int2double_rn(int x) { return x; }
EPEMU_INLINE double __uint2double_rn(unsigned x) { return x; }

// ---- float to integer -----------------------------------------------------------------------------------------
namespace ep_emulator {
// PTX's cvt: out of range saturates; NaN gives 0, or the sign bit alone when either side has 64 bits.
template <typename I, typename F>
EPEMU_INLINE I to_integer(F rounded) {
    using limits = std::numeric_limits<I>;
    constexpr bool kWide = sizeof(I) == 8 || sizeof(F) == 8;
    if (rounded != rounded) return kWide ? static_cast<I>(1ull << (8 * sizeof(I) - 1)) : I(0);
    if (rounded <= static_cast<F>(limits::min())) return limits::min();
    if (rounded >= static_cast<F>(limits::max())) return limits::max();  // the bound rounds up to a power of two
    return static_cast<I>(rounded);
}
}  // namespace ep_emulator

#define EPEMU_TO_INTEGER(F, from, I, to)                                                               \
    EPEMU_INLINE I __##from##2##to##_rn(F x) { return ep_emulator::to_integer<I>(std::nearbyint(x)); } \
    EPEMU_INLINE I __##from##2##to##_rz(F x) { return ep_emulator::to_integer<I>(std::trunc(x)); }     \
    EPEMU_INLINE I __##from##2##to##_ru(F x) { return ep_emulator::to_integer<I>(std::ceil(x)); }      \
    EPEMU_INLINE I __##from##2##to##_rd(F x) { return ep_emulator::to_integer<I>(std::floor(x)); }
EPEMU_TO_INTEGER(float, float, int, int)
EPEMU_TO_INTEGER(float, float, unsigned, uint)
EPEMU_TO_INTEGER(float, float, long long, ll)
EPEMU_TO_INTEGER(float, float, unsigned long long, ull)
EPEMU_TO_INTEGER(double, double, int, int)
EPEMU_TO_INTEGER(double, double, unsigned, uint)
EPEMU_TO_INTEGER(double, double, long long, ll)
EPEMU_TO_INTEGER(double, double, unsigned long long, ull)
#undef EPEMU_TO_INTEGER

// ---- fast approximations --------------------------------------------------------------------------------------
// glibc declares some of these names for itself, with the same types, but does not offer them: extern "C" agrees.
EPEMU_C_INLINE float __sinf(float x) noexcept { return sinf(x); }
EPEMU_C_INLINE float __cosf(float x) noexcept { return cosf(x); }
EPEMU_C_INLINE float __tanf(float x) noexcept { return tanf(x); }
EPEMU_C_INLINE float __tanhf(float x) noexcept { return tanhf(x); }
EPEMU_C_INLINE float __expf(float x) noexcept { return expf(x); }
EPEMU_C_INLINE float __exp10f(float x) noexcept { return exp10f(x); }
EPEMU_C_INLINE float __logf(float x) noexcept { return logf(x); }
EPEMU_C_INLINE float __log2f(float x) noexcept { return log2f(x); }
EPEMU_C_INLINE float __log10f(float x) noexcept { return log10f(x); }
EPEMU_C_INLINE float __powf(float x, float y) noexcept { return powf(x, y); }
EPEMU_C_INLINE void __sincosf(float x, float* sine, float* cosine) noexcept {
    *sine = sinf(x);
    *cosine = cosf(x);
}
EPEMU_C_INLINE float __fdividef(float x, float y) noexcept { return x / y; }
EPEMU_C_INLINE float fdividef(float x, float y) noexcept { return x / y; }
EPEMU_C_INLINE double fdivide(double x, double y) noexcept { return x / y; }
EPEMU_C_INLINE float __saturatef(float x) noexcept { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }  // NaN gives 0

// ---- CUDA's additions to <math.h>, and their float overloads --------------------------------------------------
namespace ep_emulator {
// sin(pi x): exact for whole and half numbers, since the argument is reduced before it is multiplied by pi.
inline double sin_pi(double x) {
    const double r = std::remainder(x, 2.0), a = std::fabs(r);
    const double s = a <= 0.25   ? std::sin(M_PI * a)
                     : a <= 0.75 ? std::cos(M_PI * (0.5 - a))
                                 : std::sin(M_PI * (1.0 - a));
    return std::copysign(s, r);
}
inline double cos_pi(double x) {
    const double a = std::fabs(std::remainder(x, 2.0));
    return a <= 0.25 ? std::cos(M_PI * a) : a <= 0.75 ? std::sin(M_PI * (0.5 - a)) : -std::cos(M_PI * (1.0 - a));
}
inline double euclidean_norm(int dimension, const double* v) {
    double norm = 0.0;
    for (int i = 0; i < dimension; i++) norm = std::hypot(norm, v[i]);
    return norm;
}
inline float euclidean_norm(int dimension, const float* v) {
    double sum = 0.0;
    for (int i = 0; i < dimension; i++) sum += static_cast<double>(v[i]) * v[i];
    return static_cast<float>(std::sqrt(sum));
}
}  // namespace ep_emulator

// Defines name(double), namef(float) and the overload name(float), all from one expression in double x, y, z, w.
#define EPEMU_FUNCTION(name, parameters_d, parameters_f, expression)                              \
    EPEMU_C_INLINE double name parameters_d noexcept { return expression; }                       \
    EPEMU_C_INLINE float name##f parameters_f noexcept { return static_cast<float>(expression); } \
    EPEMU_INLINE float name parameters_f { return static_cast<float>(expression); }
EPEMU_FUNCTION(rsqrt, (double x), (float x), 1.0 / std::sqrt(static_cast<double>(x)))
EPEMU_FUNCTION(rcbrt, (double x), (float x), 1.0 / std::cbrt(static_cast<double>(x)))
EPEMU_FUNCTION(sinpi, (double x), (float x), ep_emulator::sin_pi(x))
EPEMU_FUNCTION(cospi, (double x), (float x), ep_emulator::cos_pi(x))
EPEMU_FUNCTION(normcdf, (double x), (float x), 0.5 * std::erfc(-static_cast<double>(x) * M_SQRT1_2))
EPEMU_FUNCTION(rhypot, (double x, double y), (float x, float y), 1.0 / std::hypot(static_cast<double>(x), y))
EPEMU_FUNCTION(norm3d, (double x, double y, double z), (float x, float y, float z),
               std::hypot(static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)))
EPEMU_FUNCTION(rnorm3d, (double x, double y, double z), (float x, float y, float z),
               1.0 / std::hypot(static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)))
EPEMU_FUNCTION(norm4d, (double x, double y, double z, double w), (float x, float y, float z, float w),
               std::hypot(std::hypot(static_cast<double>(x), y), std::hypot(static_cast<double>(z), w)))
EPEMU_FUNCTION(rnorm4d, (double x, double y, double z, double w), (float x, float y, float z, float w),
               1.0 / std::hypot(std::hypot(static_cast<double>(x), y), std::hypot(static_cast<double>(z), w)))
#undef EPEMU_FUNCTION

EPEMU_C_INLINE void sincospi(double x, double* sine, double* cosine) noexcept {
    *sine = ep_emulator::sin_pi(x);
    *cosine = ep_emulator::cos_pi(x);
}
EPEMU_C_INLINE void sincospif(float x, float* sine, float* cosine) noexcept {
    *sine = sinpif(x);
    *cosine = cospif(x);
}
EPEMU_INLINE void sincospi(float x, float* sine, float* cosine) { sincospif(x, sine, cosine); }
EPEMU_INLINE void sincos(float x, float* sine, float* cosine) { __sincosf(x, sine, cosine); }
EPEMU_INLINE float exp10(float x) { return exp10f(x); }
EPEMU_INLINE double norm(int dimension, const double* v) { return ep_emulator::euclidean_norm(dimension, v); }
EPEMU_INLINE float normf(int dimension, const float* v) { return ep_emulator::euclidean_norm(dimension, v); }
EPEMU_INLINE double rnorm(int dimension, const double* v) { return 1.0 / ep_emulator::euclidean_norm(dimension, v); }
EPEMU_INLINE float rnormf(int dimension, const float* v) { return 1.0f / ep_emulator::euclidean_norm(dimension, v); }

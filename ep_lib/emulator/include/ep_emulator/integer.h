// Integer and bit intrinsics, min and max.
#pragma once
#include <ep_emulator/builtins.h>

// ---- counting and permuting bits ------------------------------------------------------------------------------
EPEMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
EPEMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EPEMU_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
EPEMU_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
EPEMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EPEMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }

EPEMU_INLINE unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
EPEMU_INLINE unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}

// Byte i of the result is byte (selector >> 4 i) & 7 of the eight in y:x. (PTX's prmt can also replicate a sign with
// bit 3 of a selector; __byte_perm ignores that bit.)
EPEMU_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> (4 * i) & 7;
        result |= (static_cast<unsigned>(bytes >> (8 * choice)) & 0xff) << (8 * i);
    }
    return result;
}

// hi:lo shifted by `shift`; the "c" forms clamp the shift to 32, the others take it modulo 32.
EPEMU_INLINE unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(hi) << 32 | lo;
    return static_cast<unsigned>(both << (shift < 32 ? shift : 32) >> 32);
}
EPEMU_INLINE unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(hi) << 32 | lo;
    return static_cast<unsigned>(both >> (shift < 32 ? shift : 32));
}
EPEMU_INLINE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return __funnelshift_lc(lo, hi, shift & 31);
}
EPEMU_INLINE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return __funnelshift_rc(lo, hi, shift & 31);
}

// Position of the offset-th set bit of mask, counted from `base` upwards (offset > 0) or downwards (offset < 0).
EPEMU_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {
    if (offset == 0) return base < 32 && (mask >> base & 1) ? base : 0xffffffffu;
    const int step = offset > 0 ? 1 : -1;
    int left = offset > 0 ? offset : -offset;
    for (int bit = static_cast<int>(base); bit >= 0 && bit < 32; bit += step)
        if ((mask >> bit & 1) && --left == 0) return static_cast<unsigned>(bit);
    return 0xffffffffu;
}

// ---- products, averages, sums of absolute differences ---------------------------------------------------------
EPEMU_INLINE int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
EPEMU_INLINE unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
EPEMU_INLINE long long __mul64hi(long long x, long long y) {
    return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
EPEMU_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
EPEMU_INLINE unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
EPEMU_INLINE int __mul24(int x, int y) {
    const long long low_x = static_cast<int>(static_cast<unsigned>(x) << 8) >> 8;
    const long long low_y = static_cast<int>(static_cast<unsigned>(y) << 8) >> 8;
    return static_cast<int>(low_x * low_y);
}
EPEMU_INLINE unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x > y ? x - y : y - x) + z; }
EPEMU_INLINE unsigned __sad(int x, int y, unsigned z) {
    const long long difference = static_cast<long long>(x) - y;
    return static_cast<unsigned>(difference < 0 ? -difference : difference) + z;
}
EPEMU_INLINE int __hadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y) >> 1); }
EPEMU_INLINE int __rhadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y + 1) >> 1); }
EPEMU_INLINE unsigned __uhadd(unsigned x, unsigned y) {
    return static_cast<unsigned>((static_cast<unsigned long long>(x) + y) >> 1);
}
EPEMU_INLINE unsigned __urhadd(unsigned x, unsigned y) {
    return static_cast<unsigned>((static_cast<unsigned long long>(x) + y + 1) >> 1);
}

// ---- dot products of bytes ------------------------------------------------------------------------------------
namespace ep_emulator {
// Sum over four (A 8 bits) or two (A 16 bits) lanes; Byte decides how b's bytes are read, starting at `first_byte`.
template <typename A, typename Byte, typename Sum>
EPEMU_INLINE Sum dot(unsigned a, unsigned b, Sum sum, int first_byte = 0) {
    constexpr int kBits = 8 * sizeof(A);
    for (int i = 0; i < 32 / kBits; i++)
        sum += static_cast<Sum>(static_cast<A>(a >> (kBits * i))) *
               static_cast<Sum>(static_cast<Byte>(b >> (8 * (first_byte + i))));
    return sum;
}
template <typename V>
EPEMU_INLINE unsigned packed(V vector) {
    static_assert(sizeof(V) == 4, "four bytes");
    unsigned bits;
    __builtin_memcpy(&bits, &vector, 4);
    return bits;
}
}  // namespace ep_emulator

EPEMU_INLINE int __dp4a(int a, int b, int c) { return ep_emulator::dot<signed char, signed char>(a, b, c); }
EPEMU_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return ep_emulator::dot<unsigned char, unsigned char>(a, b, c);
}
EPEMU_INLINE int __dp4a(char4 a, char4 b, int c) {
    return ep_emulator::dot<signed char, signed char>(ep_emulator::packed(a), ep_emulator::packed(b), c);
}
EPEMU_INLINE unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return ep_emulator::dot<unsigned char, unsigned char>(ep_emulator::packed(a), ep_emulator::packed(b), c);
}
#define EPEMU_DP2A(name, first_byte)                                                                                 \
    EPEMU_INLINE int name(int a, int b, int c) { return ep_emulator::dot<short, signed char>(a, b, c, first_byte); } \
    EPEMU_INLINE unsigned name(unsigned a, unsigned b, unsigned c) {                                                 \
        return ep_emulator::dot<unsigned short, unsigned char>(a, b, c, first_byte);                                 \
    }                                                                                                                \
    EPEMU_INLINE int name(short2 a, char4 b, int c) {                                                                \
        return ep_emulator::dot<short, signed char>(ep_emulator::packed(a), ep_emulator::packed(b), c, first_byte);  \
    }                                                                                                                \
    EPEMU_INLINE unsigned name(ushort2 a, uchar4 b, unsigned c) {                                                    \
        return ep_emulator::dot<unsigned short, unsigned char>(ep_emulator::packed(a), ep_emulator::packed(b), c,    \
                                                               first_byte);                                          \
    }
EPEMU_DP2A(__dp2a_lo, 0)
EPEMU_DP2A(__dp2a_hi, 2)
#undef EPEMU_DP2A

// ---- min and max ----------------------------------------------------------------------------------------------
// In the global namespace, with the mixed pairs that CUDA has and their result types. std::min and std::max stay as
// they are; with `using namespace std` these win, since they are no templates.
#define EPEMU_MIN_MAX(R, A, B)                                                                \
    EPEMU_INLINE R min(A a, B b) {                                                            \
        return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
    }                                                                                         \
    EPEMU_INLINE R max(A a, B b) {                                                            \
        return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
    }
#define EPEMU_MIN_MAX_INTEGER(S)                      \
    EPEMU_MIN_MAX(S, S, S)                            \
    EPEMU_MIN_MAX(unsigned S, unsigned S, unsigned S) \
    EPEMU_MIN_MAX(unsigned S, S, unsigned S)          \
    EPEMU_MIN_MAX(unsigned S, unsigned S, S)
EPEMU_MIN_MAX_INTEGER(int)
EPEMU_MIN_MAX_INTEGER(long)
EPEMU_MIN_MAX_INTEGER(long long)
#undef EPEMU_MIN_MAX_INTEGER
#undef EPEMU_MIN_MAX

EPEMU_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
EPEMU_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
EPEMU_INLINE long long llmin(long long a, long long b) { return min(a, b); }
EPEMU_INLINE long long llmax(long long a, long long b) { return max(a, b); }
EPEMU_INLINE unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
EPEMU_INLINE unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }

// The smaller or larger number; a NaN loses against a number, as on the device.
EPEMU_INLINE float min(float a, float b) { return fminf(a, b); }
EPEMU_INLINE float max(float a, float b) { return fmaxf(a, b); }
EPEMU_INLINE double min(double a, double b) { return fmin(a, b); }
EPEMU_INLINE double max(double a, double b) { return fmax(a, b); }
EPEMU_INLINE double min(float a, double b) { return fmin(static_cast<double>(a), b); }
EPEMU_INLINE double max(float a, double b) { return fmax(static_cast<double>(a), b); }
EPEMU_INLINE double min(double a, float b) { return fmin(a, static_cast<double>(b)); }
EPEMU_INLINE double max(double a, float b) { return fmax(a, static_cast<double>(b)); }

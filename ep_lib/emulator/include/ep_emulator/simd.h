// Two 16-bit or four 8-bit lanes in one 32-bit word: __vadd2, __vcmpgtu4, ... A GPU does most of them in one or two
// instructions; here a loop over the lanes.
#pragma once
#include <ep_emulator/integer.h>

namespace ep_emulator {
// Applies f to every lane of a and b; f takes and gives int, the result is cut to the lane's width.
template <typename Lane, typename F>
EPEMU_INLINE unsigned per_lane(unsigned a, unsigned b, F f) {
    constexpr int kBits = 8 * sizeof(Lane);
    constexpr unsigned kMask = (1u << kBits) - 1;
    unsigned result = 0;
    for (int shift = 0; shift < 32; shift += kBits)
        result |= (static_cast<unsigned>(f(static_cast<int>(static_cast<Lane>(a >> shift)),
                                           static_cast<int>(static_cast<Lane>(b >> shift)))) &
                   kMask)
                  << shift;
    return result;
}
template <typename Lane>
EPEMU_INLINE int saturate(int value) {
    constexpr int kLow = std::numeric_limits<Lane>::min(), kHigh = std::numeric_limits<Lane>::max();
    return value < kLow ? kLow : value > kHigh ? kHigh : value;
}
template <typename Lane>
EPEMU_INLINE unsigned sum_of_differences(unsigned a, unsigned b) {
    unsigned sum = 0;
    per_lane<Lane>(a, b, [&](int x, int y) {
        sum += static_cast<unsigned>(x > y ? x - y : y - x);
        return 0;
    });
    return sum;
}
}  // namespace ep_emulator

#define EPEMU_LANES_2(name, Lane, expression)                                              \
    EPEMU_INLINE unsigned name(unsigned a, unsigned b) {                                   \
        using L [[maybe_unused]] = Lane;                                                   \
        return ep_emulator::per_lane<Lane>(a, b, [](int x, int y) { return expression; }); \
    }
#define EPEMU_LANES_1(name, Lane, expression)                                            \
    EPEMU_INLINE unsigned name(unsigned a) {                                             \
        using L [[maybe_unused]] = Lane;                                                 \
        return ep_emulator::per_lane<Lane>(a, 0, [](int x, int) { return expression; }); \
    }
#define EPEMU_COMPARE(condition, n, S, suffix, expression)              \
    EPEMU_LANES_2(__vcmp##condition##suffix##n, S, expression ? -1 : 0) \
    EPEMU_LANES_2(__vset##condition##suffix##n, S, expression ? 1 : 0)
#define EPEMU_ORDERED(n, T, suffix)         \
    EPEMU_COMPARE(ge, n, T, suffix, x >= y) \
    EPEMU_COMPARE(gt, n, T, suffix, x > y)  \
    EPEMU_COMPARE(le, n, T, suffix, x <= y) \
    EPEMU_COMPARE(lt, n, T, suffix, x < y)

#define EPEMU_SIMD(n, S, U)                                                                                       \
    EPEMU_LANES_2(__vadd##n, S, x + y)                                                                            \
    EPEMU_LANES_2(__vaddss##n, S, ep_emulator::saturate<L>(x + y))                                                \
    EPEMU_LANES_2(__vaddus##n, U, ep_emulator::saturate<L>(x + y))                                                \
    EPEMU_LANES_2(__vsub##n, S, x - y)                                                                            \
    EPEMU_LANES_2(__vsubss##n, S, ep_emulator::saturate<L>(x - y))                                                \
    EPEMU_LANES_2(__vsubus##n, U, ep_emulator::saturate<L>(x - y))                                                \
    EPEMU_LANES_2(__vavgu##n, U, (x + y + 1) >> 1)                                                                \
    EPEMU_LANES_2(__vhaddu##n, U, (x + y) >> 1)                                                                   \
    EPEMU_LANES_2(__vmaxs##n, S, x > y ? x : y)                                                                   \
    EPEMU_LANES_2(__vmaxu##n, U, x > y ? x : y)                                                                   \
    EPEMU_LANES_2(__vmins##n, S, x < y ? x : y)                                                                   \
    EPEMU_LANES_2(__vminu##n, U, x < y ? x : y)                                                                   \
    EPEMU_LANES_2(__vabsdiffs##n, S, x > y ? x - y : y - x)                                                       \
    EPEMU_LANES_2(__vabsdiffu##n, U, x > y ? x - y : y - x)                                                       \
    EPEMU_LANES_1(__vneg##n, S, -x)                                                                               \
    EPEMU_LANES_1(__vnegss##n, S, ep_emulator::saturate<L>(-x))                                                   \
    EPEMU_LANES_1(__vabs##n, S, x < 0 ? -x : x)                                                                   \
    EPEMU_LANES_1(__vabsss##n, S, ep_emulator::saturate<L>(x < 0 ? -x : x))                                       \
    EPEMU_COMPARE(eq, n, U, , x == y)                                                                             \
    EPEMU_COMPARE(ne, n, U, , x != y)                                                                             \
    EPEMU_ORDERED(n, S, s)                                                                                        \
    EPEMU_ORDERED(n, U, u)                                                                                        \
    EPEMU_INLINE unsigned __vsads##n(unsigned a, unsigned b) { return ep_emulator::sum_of_differences<S>(a, b); } \
    EPEMU_INLINE unsigned __vsadu##n(unsigned a, unsigned b) { return ep_emulator::sum_of_differences<U>(a, b); }
EPEMU_SIMD(2, short, unsigned short)
EPEMU_SIMD(4, signed char, unsigned char)

#undef EPEMU_SIMD
#undef EPEMU_ORDERED
#undef EPEMU_COMPARE
#undef EPEMU_LANES_1
#undef EPEMU_LANES_2

// ---- three-way and fused forms on whole words -----------------------------------------------------------------
#define EPEMU_WORDS(T, suffix)                                                                    \
    EPEMU_INLINE T __vimax3_##suffix(T a, T b, T c) { return max(max(a, b), c); }                 \
    EPEMU_INLINE T __vimin3_##suffix(T a, T b, T c) { return min(min(a, b), c); }                 \
    EPEMU_INLINE T __viaddmax_##suffix(T a, T b, T c) {                                           \
        return max(static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b)), c);       \
    }                                                                                             \
    EPEMU_INLINE T __viaddmin_##suffix(T a, T b, T c) {                                           \
        return min(static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b)), c);       \
    }                                                                                             \
    EPEMU_INLINE T __vibmax_##suffix(T a, T b, bool* first) { return (*first = a >= b) ? a : b; } \
    EPEMU_INLINE T __vibmin_##suffix(T a, T b, bool* first) { return (*first = a <= b) ? a : b; }
EPEMU_WORDS(int, s32)
EPEMU_WORDS(unsigned, u32)
#undef EPEMU_WORDS
EPEMU_INLINE int __vimax_s32_relu(int a, int b) { return max(max(a, b), 0); }
EPEMU_INLINE int __vimin_s32_relu(int a, int b) { return max(min(a, b), 0); }
EPEMU_INLINE int __vimax3_s32_relu(int a, int b, int c) { return max(__vimax3_s32(a, b, c), 0); }
EPEMU_INLINE int __vimin3_s32_relu(int a, int b, int c) { return max(__vimin3_s32(a, b, c), 0); }
EPEMU_INLINE int __viaddmax_s32_relu(int a, int b, int c) { return max(__viaddmax_s32(a, b, c), 0); }
EPEMU_INLINE int __viaddmin_s32_relu(int a, int b, int c) { return max(__viaddmin_s32(a, b, c), 0); }

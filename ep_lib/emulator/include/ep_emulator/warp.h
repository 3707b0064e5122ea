// Warp-wide functions: shuffles, votes, match, reductions. The runtime sees one call with 64 bits of payload; here
// are the overloads that CUDA has, so that a call converts its arguments just as nvcc would convert them.
#pragma once
#include <ep_emulator/builtins.h>

namespace ep_emulator {
// The bits of a value of up to 8 bytes, and back. Numbers are converted: a memcpy is a call into the runtime
// (prelude.h), and a kernel that sums BF16 would make two for each value.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <typename T>
EPEMU_INLINE uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a warp or atomic operation takes at most 8 bytes");
    if constexpr (std::is_floating_point_v<T>) {
        return __builtin_bit_cast(BitsOf<T>, value);
    } else if constexpr (std::is_integral_v<T>) {
        return static_cast<uint64_t>(value) & ~uint64_t{0} >> (64 - 8 * sizeof(T));  // no sign above its own bits
    } else {
        uint64_t bits = 0;
        __builtin_memcpy(&bits, static_cast<const void*>(&value), sizeof(T));
        return bits;
    }
}
template <typename T>
EPEMU_INLINE T from_bits(uint64_t bits) {
    if constexpr (std::is_floating_point_v<T>) {
        return __builtin_bit_cast(T, static_cast<BitsOf<T>>(bits));
    } else if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(bits);
    } else {
        T value;
        __builtin_memcpy(static_cast<void*>(&value), &bits, sizeof(T));
        return value;
    }
}
template <typename T>
EPEMU_INLINE T shuffle(epemu_warp_op op, unsigned mask, T value, int arg, int width) {
    return from_bits<T>(epemu_warp(op, mask, to_bits(value), arg, width));
}
constexpr unsigned kFullMask = 0xffffffffu;
}  // namespace ep_emulator

EPEMU_INLINE void __syncwarp(unsigned mask = ep_emulator::kFullMask) {
    epemu_warp(EPEMU_WARP_SYNC, mask, 0, 0, warpSize);
}
EPEMU_INLINE unsigned __activemask() { return epemu_activemask(); }

// ---- shuffles -------------------------------------------------------------------------------------------------
#define EPEMU_SHUFFLES(T)                                                                           \
    EPEMU_INLINE T __shfl_sync(unsigned mask, T value, int source_lane, int width = warpSize) {     \
        return ep_emulator::shuffle(EPEMU_SHFL, mask, value, source_lane, width);                   \
    }                                                                                               \
    EPEMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {   \
        return ep_emulator::shuffle(EPEMU_SHFL_UP, mask, value, static_cast<int>(delta), width);    \
    }                                                                                               \
    EPEMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) { \
        return ep_emulator::shuffle(EPEMU_SHFL_DOWN, mask, value, static_cast<int>(delta), width);  \
    }                                                                                               \
    EPEMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {   \
        return ep_emulator::shuffle(EPEMU_SHFL_XOR, mask, value, lane_mask, width);                 \
    }
EPEMU_SHUFFLES(int)
EPEMU_SHUFFLES(unsigned)
EPEMU_SHUFFLES(long)
EPEMU_SHUFFLES(unsigned long)
EPEMU_SHUFFLES(long long)
EPEMU_SHUFFLES(unsigned long long)
EPEMU_SHUFFLES(float)
EPEMU_SHUFFLES(double)
EPEMU_SHUFFLES(__half)
EPEMU_SHUFFLES(__half2)
EPEMU_SHUFFLES(__nv_bfloat16)
EPEMU_SHUFFLES(__nv_bfloat162)
#undef EPEMU_SHUFFLES

// ---- votes ----------------------------------------------------------------------------------------------------
namespace ep_emulator {
// Low half: the lanes that voted yes. High half: those that voted, which are the lanes of the mask that have not
// exited.
EPEMU_INLINE uint64_t votes(unsigned mask, int predicate) {
    return epemu_warp(EPEMU_BALLOT, mask, predicate != 0, 0, warpSize);
}
}  // namespace ep_emulator
EPEMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(ep_emulator::votes(mask, predicate));
}
EPEMU_INLINE int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
EPEMU_INLINE int __all_sync(unsigned mask, int predicate) {
    const uint64_t votes = ep_emulator::votes(mask, predicate);
    return static_cast<unsigned>(votes) == votes >> 32;
}
EPEMU_INLINE int __uni_sync(unsigned mask, int predicate) {
    const uint64_t votes = ep_emulator::votes(mask, predicate);
    return static_cast<unsigned>(votes) == 0 || static_cast<unsigned>(votes) == votes >> 32;
}

// ---- match ----------------------------------------------------------------------------------------------------
#define EPEMU_MATCHES(T)                                                                                           \
    EPEMU_INLINE unsigned __match_any_sync(unsigned mask, T value) {                                               \
        return static_cast<unsigned>(epemu_warp(EPEMU_MATCH_ANY, mask, ep_emulator::to_bits(value), 0, warpSize)); \
    }                                                                                                              \
    EPEMU_INLINE unsigned __match_all_sync(unsigned mask, T value, int* predicate) {                               \
        const unsigned lanes =                                                                                     \
            static_cast<unsigned>(epemu_warp(EPEMU_MATCH_ALL, mask, ep_emulator::to_bits(value), 0, warpSize));    \
        *predicate = lanes != 0;                                                                                   \
        return lanes;                                                                                              \
    }
EPEMU_MATCHES(int)
EPEMU_MATCHES(unsigned)
EPEMU_MATCHES(long)
EPEMU_MATCHES(unsigned long)
EPEMU_MATCHES(long long)
EPEMU_MATCHES(unsigned long long)
EPEMU_MATCHES(float)
EPEMU_MATCHES(double)
#undef EPEMU_MATCHES

// ---- reductions -----------------------------------------------------------------------------------------------
#define EPEMU_REDUCTION(name, T, op)                                                            \
    EPEMU_INLINE T name(unsigned mask, T value) {                                               \
        return static_cast<T>(epemu_warp(op, mask, static_cast<unsigned>(value), 0, warpSize)); \
    }
EPEMU_REDUCTION(__reduce_add_sync, unsigned, EPEMU_REDUCE_ADD)
EPEMU_REDUCTION(__reduce_add_sync, int, EPEMU_REDUCE_ADD)
EPEMU_REDUCTION(__reduce_min_sync, unsigned, EPEMU_REDUCE_MIN_U32)
EPEMU_REDUCTION(__reduce_min_sync, int, EPEMU_REDUCE_MIN_S32)
EPEMU_REDUCTION(__reduce_max_sync, unsigned, EPEMU_REDUCE_MAX_U32)
EPEMU_REDUCTION(__reduce_max_sync, int, EPEMU_REDUCE_MAX_S32)
EPEMU_REDUCTION(__reduce_and_sync, unsigned, EPEMU_REDUCE_AND)
EPEMU_REDUCTION(__reduce_or_sync, unsigned, EPEMU_REDUCE_OR)
EPEMU_REDUCTION(__reduce_xor_sync, unsigned, EPEMU_REDUCE_XOR)
#undef EPEMU_REDUCTION

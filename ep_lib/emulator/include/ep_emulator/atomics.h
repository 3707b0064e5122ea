// Atomic functions in their three scopes: block, device (no suffix) and system. All are relaxed, as in CUDA; order
// comes from fences.
//
// CUDA has overloads for long long and unsigned long long. NVRTC's uint64_t is unsigned long long, this compiler's is
// unsigned long: there are overloads for both here, so that one source suits both.
#pragma once
#include <ep_emulator/warp.h>  // to_bits, from_bits

namespace ep_emulator {
template <typename T>
EPEMU_INLINE T atomic(epemu_atomic_op op, T* address, T value, T compare, epemu_scope scope) {
    const uint64_t old = epemu_atomic(op, address, to_bits(value), to_bits(compare), sizeof(T), EPEMU_RELAXED, scope);
    return from_bits<T>(epemu_found(address, old));
}

// For types without a hardware addition (half, bfloat16 and their pairs): a compare-and-swap loop on the bits.
template <typename T, typename Add>
EPEMU_INLINE T atomic_add_by_cas(T* address, Add add, epemu_scope scope) {
    uint64_t seen = epemu_load(address, sizeof(T), EPEMU_RELAXED, scope);
    for (;;) {
        const T old = from_bits<T>(seen);
        const uint64_t found =
            epemu_atomic(EPEMU_ATOMIC_CAS, address, to_bits<T>(add(old)), seen, sizeof(T), EPEMU_RELAXED, scope);
        if (found == seen) return old;
        seen = found;
    }
}
}  // namespace ep_emulator

// Each function three times, with the scope in its name.
#define EPEMU_SCOPES(define) \
    define(, EPEMU_SCOPE_DEVICE) define(_block, EPEMU_SCOPE_BLOCK) define(_system, EPEMU_SCOPE_SYSTEM)

#define EPEMU_ATOMIC(name, suffix, scope, T, op)                         \
    EPEMU_INLINE T name##suffix(T* address, T value) {                   \
        return ep_emulator::atomic<T>(op, address, value, value, scope); \
    }
#define EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, T)                                      \
    EPEMU_INLINE T atomicCAS##suffix(T* address, T compare, T value) {                   \
        return ep_emulator::atomic<T>(EPEMU_ATOMIC_CAS, address, value, compare, scope); \
    }

#define EPEMU_ARITHMETIC(suffix, scope)                                            \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, int, EPEMU_ATOMIC_ADD)                  \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, unsigned, EPEMU_ATOMIC_ADD)             \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, unsigned long long, EPEMU_ATOMIC_ADD)   \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, unsigned long, EPEMU_ATOMIC_ADD)        \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, float, EPEMU_ATOMIC_ADD_F32)            \
    EPEMU_ATOMIC(atomicAdd, suffix, scope, double, EPEMU_ATOMIC_ADD_F64)           \
    EPEMU_ATOMIC(atomicSub, suffix, scope, int, EPEMU_ATOMIC_SUB)                  \
    EPEMU_ATOMIC(atomicSub, suffix, scope, unsigned, EPEMU_ATOMIC_SUB)             \
    EPEMU_ATOMIC(atomicInc, suffix, scope, unsigned, EPEMU_ATOMIC_INC)             \
    EPEMU_ATOMIC(atomicDec, suffix, scope, unsigned, EPEMU_ATOMIC_DEC)             \
    EPEMU_ATOMIC(atomicMin, suffix, scope, int, EPEMU_ATOMIC_MIN_S)                \
    EPEMU_ATOMIC(atomicMin, suffix, scope, unsigned, EPEMU_ATOMIC_MIN_U)           \
    EPEMU_ATOMIC(atomicMin, suffix, scope, long long, EPEMU_ATOMIC_MIN_S)          \
    EPEMU_ATOMIC(atomicMin, suffix, scope, long, EPEMU_ATOMIC_MIN_S)               \
    EPEMU_ATOMIC(atomicMin, suffix, scope, unsigned long long, EPEMU_ATOMIC_MIN_U) \
    EPEMU_ATOMIC(atomicMin, suffix, scope, unsigned long, EPEMU_ATOMIC_MIN_U)      \
    EPEMU_ATOMIC(atomicMax, suffix, scope, int, EPEMU_ATOMIC_MAX_S)                \
    EPEMU_ATOMIC(atomicMax, suffix, scope, unsigned, EPEMU_ATOMIC_MAX_U)           \
    EPEMU_ATOMIC(atomicMax, suffix, scope, long long, EPEMU_ATOMIC_MAX_S)          \
    EPEMU_ATOMIC(atomicMax, suffix, scope, long, EPEMU_ATOMIC_MAX_S)               \
    EPEMU_ATOMIC(atomicMax, suffix, scope, unsigned long long, EPEMU_ATOMIC_MAX_U) \
    EPEMU_ATOMIC(atomicMax, suffix, scope, unsigned long, EPEMU_ATOMIC_MAX_U)
EPEMU_SCOPES(EPEMU_ARITHMETIC)

#define EPEMU_BITWISE_OF(name, suffix, scope, op)             \
    EPEMU_ATOMIC(name, suffix, scope, int, op)                \
    EPEMU_ATOMIC(name, suffix, scope, unsigned, op)           \
    EPEMU_ATOMIC(name, suffix, scope, long long, op)          \
    EPEMU_ATOMIC(name, suffix, scope, long, op)               \
    EPEMU_ATOMIC(name, suffix, scope, unsigned long long, op) \
    EPEMU_ATOMIC(name, suffix, scope, unsigned long, op)
#define EPEMU_BITWISE(suffix, scope)                             \
    EPEMU_BITWISE_OF(atomicAnd, suffix, scope, EPEMU_ATOMIC_AND) \
    EPEMU_BITWISE_OF(atomicOr, suffix, scope, EPEMU_ATOMIC_OR)   \
    EPEMU_BITWISE_OF(atomicXor, suffix, scope, EPEMU_ATOMIC_XOR)
EPEMU_SCOPES(EPEMU_BITWISE)

#define EPEMU_EXCHANGES(suffix, scope)                                             \
    EPEMU_ATOMIC(atomicExch, suffix, scope, int, EPEMU_ATOMIC_EXCH)                \
    EPEMU_ATOMIC(atomicExch, suffix, scope, unsigned, EPEMU_ATOMIC_EXCH)           \
    EPEMU_ATOMIC(atomicExch, suffix, scope, unsigned long long, EPEMU_ATOMIC_EXCH) \
    EPEMU_ATOMIC(atomicExch, suffix, scope, unsigned long, EPEMU_ATOMIC_EXCH)      \
    EPEMU_ATOMIC(atomicExch, suffix, scope, float, EPEMU_ATOMIC_EXCH)              \
    EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, int)                                  \
    EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, unsigned)                             \
    EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, unsigned long long)                   \
    EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, unsigned long)                        \
    EPEMU_ATOMIC_CAS_FUNCTION(suffix, scope, unsigned short)
EPEMU_SCOPES(EPEMU_EXCHANGES)

// Pairs of 16 bits are added at once; float2 and float4 (sm_90) component by component, which is all CUDA promises.
#define EPEMU_SMALL_FLOATS(suffix, scope)                                                                             \
    EPEMU_INLINE __half atomicAdd##suffix(__half* address, __half value) {                                            \
        return ep_emulator::atomic_add_by_cas(address, [&](__half old) { return __hadd(old, value); }, scope);        \
    }                                                                                                                 \
    EPEMU_INLINE __nv_bfloat16 atomicAdd##suffix(__nv_bfloat16* address, __nv_bfloat16 value) {                       \
        return ep_emulator::atomic_add_by_cas(address, [&](__nv_bfloat16 old) { return __hadd(old, value); }, scope); \
    }                                                                                                                 \
    EPEMU_INLINE __half2 atomicAdd##suffix(__half2* address, __half2 value) {                                         \
        return ep_emulator::atomic_add_by_cas(address, [&](__half2 old) { return __hadd2(old, value); }, scope);      \
    }                                                                                                                 \
    EPEMU_INLINE __nv_bfloat162 atomicAdd##suffix(__nv_bfloat162* address, __nv_bfloat162 value) {                    \
        return ep_emulator::atomic_add_by_cas(                                                                        \
            address, [&](__nv_bfloat162 old) { return __hadd2(old, value); }, scope);                                 \
    }                                                                                                                 \
    EPEMU_INLINE float2 atomicAdd##suffix(float2* address, float2 value) {                                            \
        return float2{atomicAdd##suffix(&address->x, value.x), atomicAdd##suffix(&address->y, value.y)};              \
    }                                                                                                                 \
    EPEMU_INLINE float4 atomicAdd##suffix(float4* address, float4 value) {                                            \
        return float4{atomicAdd##suffix(&address->x, value.x), atomicAdd##suffix(&address->y, value.y),               \
                      atomicAdd##suffix(&address->z, value.z), atomicAdd##suffix(&address->w, value.w)};              \
    }
EPEMU_SCOPES(EPEMU_SMALL_FLOATS)

// 16 bytes at once (sm_90): any trivially copyable type of that size and alignment.
namespace ep_emulator {
template <typename T, typename Result = T>
using IfWide = typename std::enable_if<sizeof(T) == 16 && alignof(T) >= 16, Result>::type;
template <typename T>
EPEMU_INLINE T atomic16(epemu_atomic_op op, T* address, const T& value, const T& compare, int order, int scope) {
    static_assert(std::is_trivially_copyable<T>::value, "an atomic of 16 bytes takes trivially copyable types");
    T old;
    epemu_atomic16(op, address, &value, &compare, &old, order, scope);
    return old;
}
}  // namespace ep_emulator
#define EPEMU_WIDE(suffix, scope)                                                                      \
    template <typename T>                                                                              \
    EPEMU_INLINE ep_emulator::IfWide<T> atomicCAS##suffix(T* address, T compare, T value) {            \
        return ep_emulator::atomic16(EPEMU_ATOMIC_CAS, address, value, compare, EPEMU_RELAXED, scope); \
    }                                                                                                  \
    template <typename T>                                                                              \
    EPEMU_INLINE ep_emulator::IfWide<T> atomicExch##suffix(T* address, T value) {                      \
        return ep_emulator::atomic16(EPEMU_ATOMIC_EXCH, address, value, value, EPEMU_RELAXED, scope);  \
    }
EPEMU_SCOPES(EPEMU_WIDE)
#undef EPEMU_WIDE

#undef EPEMU_SCOPES
#undef EPEMU_ATOMIC
#undef EPEMU_ATOMIC_CAS_FUNCTION
#undef EPEMU_ARITHMETIC
#undef EPEMU_BITWISE_OF
#undef EPEMU_BITWISE
#undef EPEMU_EXCHANGES
#undef EPEMU_SMALL_FLOATS

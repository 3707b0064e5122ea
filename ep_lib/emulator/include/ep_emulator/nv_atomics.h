// CUDA's atomics with an order and a scope as arguments: __nv_atomic_load, _store, _exchange, _compare_exchange,
// _fetch_add and so on (CUDA 12.8), for 1, 2, 4, 8 and, without arithmetic, 16 bytes.
#pragma once
#include <ep_emulator/atomics.h>

enum {
    __NV_ATOMIC_RELAXED,
    __NV_ATOMIC_CONSUME,
    __NV_ATOMIC_ACQUIRE,
    __NV_ATOMIC_RELEASE,
    __NV_ATOMIC_ACQ_REL,
    __NV_ATOMIC_SEQ_CST
};
enum {
    __NV_THREAD_SCOPE_THREAD,
    __NV_THREAD_SCOPE_BLOCK,
    __NV_THREAD_SCOPE_CLUSTER,
    __NV_THREAD_SCOPE_DEVICE,
    __NV_THREAD_SCOPE_SYSTEM
};

namespace ep_emulator {

constexpr epemu_order nv_order(int order) {
    return order == __NV_ATOMIC_RELAXED   ? EPEMU_RELAXED
           : order == __NV_ATOMIC_RELEASE ? EPEMU_RELEASE
           : order == __NV_ATOMIC_ACQ_REL ? EPEMU_ACQ_REL
           : order == __NV_ATOMIC_SEQ_CST ? EPEMU_SEQ_CST
                                          : EPEMU_ACQUIRE;
}
// A cluster is a single block here.
constexpr epemu_scope nv_scope(int scope) {
    return scope <= __NV_THREAD_SCOPE_CLUSTER  ? EPEMU_SCOPE_BLOCK
           : scope == __NV_THREAD_SCOPE_DEVICE ? EPEMU_SCOPE_DEVICE
                                               : EPEMU_SCOPE_SYSTEM;
}

template <typename T>
EPEMU_INLINE T nv_load(const T* address, int order, int scope) {
    if constexpr (sizeof(T) == 16) {  // a compare-and-swap of zero for zero
        T* writable = const_cast<T*>(address);
        const T zero{};
        return atomic16(EPEMU_ATOMIC_CAS, writable, zero, zero, nv_order(order), nv_scope(scope));
    } else {
        return from_bits<T>(epemu_load(address, sizeof(T), nv_order(order), nv_scope(scope)));
    }
}
template <typename T>
EPEMU_INLINE void nv_store(T* address, T value, int order, int scope) {
    if constexpr (sizeof(T) == 16)
        atomic16(EPEMU_ATOMIC_EXCH, address, value, value, nv_order(order), nv_scope(scope));
    else
        epemu_store(address, to_bits(value), sizeof(T), nv_order(order), nv_scope(scope));
}
template <typename T>
EPEMU_INLINE T nv_swap(epemu_atomic_op op, T* address, T value, T compare, int order, int scope) {
    if constexpr (sizeof(T) == 16) {
        return atomic16(op, address, value, compare, nv_order(order), nv_scope(scope));
    } else {
        const uint64_t old =
            epemu_atomic(op, address, to_bits(value), to_bits(compare), sizeof(T), nv_order(order), nv_scope(scope));
        return from_bits<T>(epemu_found(address, old));
    }
}
template <typename T>
EPEMU_INLINE bool nv_compare_exchange(T* address, T* expected, T value, int success, int scope) {
    const T old = nv_swap(EPEMU_ATOMIC_CAS, address, value, *expected, success, scope);
    const bool same = __builtin_memcmp(&old, expected, sizeof(T)) == 0;
    *expected = old;
    return same;
}
template <typename T>
EPEMU_INLINE T nv_fetch(epemu_atomic_op op, T* address, T value, int order, int scope) {
    return from_bits<T>(epemu_found(
        address, epemu_atomic(op, address, to_bits(value), 0, sizeof(T), nv_order(order), nv_scope(scope))));
}
template <typename T>
constexpr epemu_atomic_op nv_add() {
    return std::is_same<T, float>::value    ? EPEMU_ATOMIC_ADD_F32
           : std::is_same<T, double>::value ? EPEMU_ATOMIC_ADD_F64
                                            : EPEMU_ATOMIC_ADD;
}

}  // namespace ep_emulator

#define EPEMU_NV_SCOPE int scope = __NV_THREAD_SCOPE_SYSTEM
template <typename T>
EPEMU_INLINE T __nv_atomic_load_n(const T* address, int order, EPEMU_NV_SCOPE) {
    return ep_emulator::nv_load(address, order, scope);
}
template <typename T>
EPEMU_INLINE void __nv_atomic_load(const T* address, T* result, int order, EPEMU_NV_SCOPE) {
    *result = ep_emulator::nv_load(address, order, scope);
}
template <typename T, typename V>
EPEMU_INLINE void __nv_atomic_store_n(T* address, V value, int order, EPEMU_NV_SCOPE) {
    ep_emulator::nv_store<T>(address, static_cast<T>(value), order, scope);
}
template <typename T>
EPEMU_INLINE void __nv_atomic_store(T* address, T* value, int order, EPEMU_NV_SCOPE) {
    ep_emulator::nv_store(address, *value, order, scope);
}
template <typename T, typename V>
EPEMU_INLINE T __nv_atomic_exchange_n(T* address, V value, int order, EPEMU_NV_SCOPE) {
    const T v = static_cast<T>(value);
    return ep_emulator::nv_swap(EPEMU_ATOMIC_EXCH, address, v, v, order, scope);
}
template <typename T>
EPEMU_INLINE void __nv_atomic_exchange(T* address, T* value, T* result, int order, EPEMU_NV_SCOPE) {
    *result = ep_emulator::nv_swap(EPEMU_ATOMIC_EXCH, address, *value, *value, order, scope);
}
template <typename T, typename V>
EPEMU_INLINE bool __nv_atomic_compare_exchange_n(T* address, T* expected, V value, bool, int success, int,
                                                 EPEMU_NV_SCOPE) {
    return ep_emulator::nv_compare_exchange(address, expected, static_cast<T>(value), success, scope);
}
template <typename T>
EPEMU_INLINE bool __nv_atomic_compare_exchange(T* address, T* expected, T* value, bool, int success, int,
                                               EPEMU_NV_SCOPE) {
    return ep_emulator::nv_compare_exchange(address, expected, *value, success, scope);
}
#define EPEMU_NV_FETCH(name, op)                                                              \
    template <typename T, typename V>                                                         \
    EPEMU_INLINE T __nv_atomic_fetch_##name(T* address, V value, int order, EPEMU_NV_SCOPE) { \
        return ep_emulator::nv_fetch<T>(op, address, static_cast<T>(value), order, scope);    \
    }                                                                                         \
    template <typename T, typename V>                                                         \
    EPEMU_INLINE void __nv_atomic_##name(T* address, V value, int order, EPEMU_NV_SCOPE) {    \
        ep_emulator::nv_fetch<T>(op, address, static_cast<T>(value), order, scope);           \
    }
EPEMU_NV_FETCH(add, ep_emulator::nv_add<T>())
EPEMU_NV_FETCH(and, EPEMU_ATOMIC_AND)
EPEMU_NV_FETCH(or, EPEMU_ATOMIC_OR)
EPEMU_NV_FETCH(xor, EPEMU_ATOMIC_XOR)
EPEMU_NV_FETCH(min, std::is_signed<T>::value ? EPEMU_ATOMIC_MIN_S : EPEMU_ATOMIC_MIN_U)
EPEMU_NV_FETCH(max, std::is_signed<T>::value ? EPEMU_ATOMIC_MAX_S : EPEMU_ATOMIC_MAX_U)
#undef EPEMU_NV_FETCH
template <typename T, typename V>
EPEMU_INLINE T __nv_atomic_fetch_sub(T* address, V value, int order, EPEMU_NV_SCOPE) {
    return __nv_atomic_fetch_add(address, -static_cast<T>(value), order, scope);
}
template <typename T, typename V>
EPEMU_INLINE void __nv_atomic_sub(T* address, V value, int order, EPEMU_NV_SCOPE) {
    __nv_atomic_fetch_add(address, -static_cast<T>(value), order, scope);
}
EPEMU_INLINE void __nv_atomic_thread_fence(int order, EPEMU_NV_SCOPE) {
    if (order != __NV_ATOMIC_RELAXED) epemu_fence(ep_emulator::nv_order(order), ep_emulator::nv_scope(scope));
}
EPEMU_INLINE void __nv_atomic_signal_fence(int) {}
#undef EPEMU_NV_SCOPE

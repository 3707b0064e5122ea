// Loads and stores with a cache hint (__ldg, __ldcs, __stcg, ...), for the scalar and vector types that CUDA takes.
//
// All are ordinary accesses of the kernel, so the checker sees bounds and races. __ldcg and __ldcv are also polls: on a
// GPU they reach L2 or memory every time, so here they are volatile loads, which let other threads run.
#pragma once
#include <ep_emulator/builtins.h>

namespace ep_emulator {
template <typename T>
EPEMU_INLINE T load_volatile(const T* address) {
    constexpr int kWord = sizeof(T) < 8 ? static_cast<int>(sizeof(T)) : 8;
    constexpr int kWords = static_cast<int>(sizeof(T)) / kWord;
    uint64_t words[kWords];
    for (int i = 0; i < kWords; i++)
        words[i] =
            epemu_load(reinterpret_cast<const char*>(address) + i * kWord, kWord, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM);
    T value;
    __builtin_memcpy(static_cast<void*>(&value), words, sizeof(T));  // little-endian: a word's low bytes come first
    return value;
}
}  // namespace ep_emulator

#define EPEMU_CACHED_TYPES(define)                                                                                  \
    define(char) define(signed char) define(short) define(int) define(long) define(long long) define(unsigned char) \
        define(unsigned short) define(unsigned) define(unsigned long) define(unsigned long long) define(float)      \
            define(double) define(char2) define(char4) define(short2) define(short4) define(int2) define(int4)      \
                define(longlong2) define(uchar2) define(uchar4) define(ushort2) define(ushort4) define(uint2)       \
                    define(uint4) define(ulonglong2) define(float2) define(float4) define(double2) define(__half)   \
                        define(__half2) define(__nv_bfloat16) define(__nv_bfloat162)

#define EPEMU_CACHED(T)                                                                     \
    EPEMU_INLINE T __ldg(const T* address) {                                                \
        epemu_read_only(address, sizeof(T));                                                \
        return *address;                                                                    \
    }                                                                                       \
    EPEMU_INLINE T __ldca(const T* address) { return *address; }                            \
    EPEMU_INLINE T __ldcs(const T* address) { return *address; }                            \
    EPEMU_INLINE T __ldlu(const T* address) { return *address; }                            \
    EPEMU_INLINE T __ldcg(const T* address) { return ep_emulator::load_volatile(address); } \
    EPEMU_INLINE T __ldcv(const T* address) { return ep_emulator::load_volatile(address); } \
    EPEMU_INLINE void __stwb(T* address, T value) { *address = value; }                     \
    EPEMU_INLINE void __stcg(T* address, T value) { *address = value; }                     \
    EPEMU_INLINE void __stcs(T* address, T value) { *address = value; }                     \
    EPEMU_INLINE void __stwt(T* address, T value) { *address = value; }
EPEMU_CACHED_TYPES(EPEMU_CACHED)
#undef EPEMU_CACHED
#undef EPEMU_CACHED_TYPES

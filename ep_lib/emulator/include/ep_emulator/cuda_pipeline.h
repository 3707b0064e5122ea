// Copies by cp.async, which a host does not have. Replaces NVIDIA's cuda_pipeline_primitives.h, and
// cuda_pipeline_helpers.h, on which nvcuda::experimental::pipeline is built.
#pragma once
#define _CUDA_PIPELINE_PRIMITIVES_H_
#define _CUDA_PIPELINE_HELPERS_H_

#include <ep_emulator/builtins.h>

#define _CUDA_PIPELINE_NAMESPACE nvcuda::experimental
#define _CUDA_PIPELINE_BEGIN_NAMESPACE \
    namespace nvcuda {                 \
    namespace experimental {
#define _CUDA_PIPELINE_END_NAMESPACE \
    }                                \
    }
#define _CUDA_PIPELINE_INTERNAL_NAMESPACE _CUDA_PIPELINE_NAMESPACE::__pipeline_internal
#define _CUDA_PIPELINE_QUALIFIER inline
#define _CUDA_PIPELINE_STATIC_QUALIFIER static inline
#define _CUDA_PIPELINE_ARCH_700_OR_LATER
#define _CUDA_PIPELINE_CPLUSPLUS_11_OR_LATER
#define _CUDA_PIPELINE_ASSERT(x)

namespace ep_emulator {

// Copies `bytes`; those behind `source_bytes` become 0.
EPEMU_INLINE void copy_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
    if (!epemu_bulk_by_lanes()) return epemu_copy_async(shared, global, bytes, source_bytes);
    for (unsigned i = 0; i < bytes; i += 4) {
        int word = 0;
        if (i < source_bytes)
            memcpy(&word, static_cast<const char*>(global) + i, source_bytes - i < 4 ? source_bytes - i : 4);
        *reinterpret_cast<int*>(static_cast<char*>(shared) + i) = word;
    }
}
EPEMU_INLINE void copy_commit() {
    if (!epemu_bulk_by_lanes()) epemu_copy_commit();
}
EPEMU_INLINE void copy_wait(unsigned but) {
    if (!epemu_bulk_by_lanes()) epemu_copy_wait(but);
}

// Copies by cp.async where possible; smaller pieces are copied at once.
template <typename Group, typename T>
EPEMU_INLINE void copy_by_group(const Group& group, T* target, const T* source, size_t bytes) {
    auto* const to = reinterpret_cast<char*>(target);
    const auto* const from = reinterpret_cast<const char*>(source);
    const size_t size = group.size(), rank = group.thread_rank();
    const size_t odd = reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from) | 16;
    const size_t aligned = odd & -odd;  // alignment of both
    size_t done = 0;
    if (aligned >= 4 && __isShared(to) && __isGlobal(from)) {
        done = bytes / aligned * aligned;
        for (size_t at = rank * aligned; at < done; at += size * aligned)
            copy_async(to + at, from + at, static_cast<unsigned>(aligned), static_cast<unsigned>(aligned));
    }
    using Word = typename std::conditional<(sizeof(T) > 1), T, char>::type;
    const size_t words = (bytes - done) / sizeof(Word);
    for (size_t i = rank; i < words; i += size)
        reinterpret_cast<Word*>(to + done)[i] = reinterpret_cast<const Word*>(from + done)[i];
    if (rank == 0)
        for (size_t at = done + words * sizeof(Word); at < bytes; at++) to[at] = from[at];
}

}  // namespace ep_emulator

EPEMU_INLINE void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zfill = 0) {
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zfill > bytes)
        epemu_trap("__pipeline_memcpy_async copies 4, 8 or 16 bytes, and fills no more of them with 0");
    ep_emulator::copy_async(shared, global, static_cast<unsigned>(bytes), static_cast<unsigned>(bytes - zfill));
}
EPEMU_INLINE void __pipeline_commit() { ep_emulator::copy_commit(); }
EPEMU_INLINE void __pipeline_wait_prior(size_t prior) {
    ep_emulator::copy_wait(prior < 8 ? static_cast<unsigned>(prior) : 8);
}
// Here the barrier counts only threads: each arrives when its copies are complete.
template <typename Barrier>
EPEMU_INLINE void __pipeline_arrive_on(Barrier*) {
    ep_emulator::copy_commit();
    ep_emulator::copy_wait(0);
}

namespace nvcuda {
namespace experimental {
namespace __pipeline_internal {

template <size_t CopySize, size_t SourceSize>
EPEMU_INLINE void pipeline_memcpy_async(void* shared, const void* global) {
    static_assert(CopySize == 4 || CopySize == 8 || CopySize == 16, "Unsupported copy size.");
    static_assert(SourceSize <= CopySize, "Source size must be less than or equal to copy size");
    ep_emulator::copy_async(shared, global, CopySize, SourceSize);
}
EPEMU_INLINE void pipeline_commit() { ep_emulator::copy_commit(); }
template <unsigned N>
EPEMU_INLINE void pipeline_wait_prior() {
    ep_emulator::copy_wait(N);
}
EPEMU_INLINE void pipeline_arrive_on(uint64_t* barrier) { __pipeline_arrive_on(barrier); }
// nvcuda::experimental::memcpy_async
template <size_t CopySize, size_t SourceSize>
EPEMU_INLINE void pipeline_copy_strict(void* to, const void* from) {
    if (__isShared(to) && !__isShared(from)) return pipeline_memcpy_async<CopySize, SourceSize>(to, from);
    memset(to, 0, CopySize);
    memcpy(to, from, SourceSize);
}
template <size_t CopySize, size_t Align>
EPEMU_INLINE void pipeline_copy_relaxed(void* to, const void* from) {
    constexpr size_t kStep = Align >= 16 ? 16 : Align;
    size_t i = 0;
    if constexpr (kStep >= 4)
        for (; i + kStep <= CopySize; i += kStep)
            pipeline_copy_strict<kStep, kStep>(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
    memcpy(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, CopySize - i);
}

}  // namespace __pipeline_internal
}  // namespace experimental
}  // namespace nvcuda

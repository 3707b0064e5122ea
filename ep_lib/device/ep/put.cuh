// Copies from this rank's memory into a peer's symmetric heap, by one thread, one warp or one block.
//
//     ep::put_warp(dst_mine, src, bytes, peer);     // dst_mine: my own copy of the target; the peer's is written
//
// A put only stores. It neither synchronises its threads nor orders its stores; that is the signal's job, and
// <ep/signal.cuh> has the rules. It has finished with `src` when all calling threads are past it (__syncwarp,
// __syncthreads).
//
// Any size and any alignment works. Where source and target have the same alignment modulo 16, each thread keeps several
// 16-byte words in flight, which is what reaches the full speed of NVLink. A peer's memory is microseconds away:
// throughput comes from having many loads and stores under way at once, not from any single one.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>

namespace ep {
namespace detail {

EP_DEVICE int4 load_word(const int4* p) { return ld_na_v4(p); }
EP_DEVICE void store_word(int4* p, int4 v) { st_na_v4(p, v); }
template <typename Word>
EP_DEVICE Word load_word(const Word* p) {
    return *p;
}
template <typename Word>
EP_DEVICE void store_word(Word* p, Word v) {
    *p = v;
}

// Words first, first + step, ... below `count`, kUnroll loads in flight at a time, also in the last, incomplete round.
template <int kUnroll, typename Word>
EP_DEVICE void copy_words(Word* dst, const Word* src, size_t first, size_t step, size_t count) {
#pragma unroll 1
    for (size_t i = first; i < count; i += kUnroll * step) {
        Word in_flight[kUnroll];
#pragma unroll
        for (int k = 0; k < kUnroll; ++k)
            if (i + k * step < count) in_flight[k] = load_word(src + i + k * step);
#pragma unroll
        for (int k = 0; k < kUnroll; ++k)
            if (i + k * step < count) store_word(dst + i + k * step, in_flight[k]);
    }
}

// Bytes up to the first word boundary, whole words, and the bytes left over.
template <int kUnroll, typename Word>
EP_DEVICE void copy_as(char* dst, const char* src, size_t bytes, size_t first, size_t step) {
    const size_t misaligned = reinterpret_cast<uint64_t>(dst) % sizeof(Word);
    size_t head = misaligned == 0 ? 0 : sizeof(Word) - misaligned;
    if (head > bytes) head = bytes;
    const size_t words = (bytes - head) / sizeof(Word);
    const size_t tail = head + words * sizeof(Word);
    copy_words<1>(dst, src, first, step, head);
    copy_words<kUnroll>(reinterpret_cast<Word*>(dst + head), reinterpret_cast<const Word*>(src + head), first, step,
                        words);
    copy_words<1>(dst + tail, src + tail, first, step, bytes - tail);
}

// For a source and target that cannot both be aligned to 16 bytes: slower in any case, so not inlined.
template <typename Word>
EP_DEVICE_RARE void copy_misaligned(char* dst, const char* src, size_t bytes, size_t first, size_t step) {
    copy_as<4, Word>(dst, src, bytes, first, step);
}

}  // namespace detail

// Thread `first` of `step` threads that copy together; each calls with its own `first`. Uses the widest word that divides
// the distance between target and source: then one head of bytes aligns both.
template <int kUnroll>
EP_DEVICE void copy_bytes(void* dst, const void* src, size_t bytes, size_t first, size_t step) {
    char* const to = static_cast<char*>(dst);
    const char* const from = static_cast<const char*>(src);
    const uint64_t differs = reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from);
    if (differs % 16 == 0) {
        detail::copy_as<kUnroll, int4>(to, from, bytes, first, step);
    } else if (differs % 4 == 0) {
        detail::copy_misaligned<uint32_t>(to, from, bytes, first, step);
    } else {
        detail::copy_misaligned<uint8_t>(to, from, bytes, first, step);
    }
}

// How many 16-byte words each thread keeps in flight. 8 words take 32 registers; for a block, 4 words per thread are enough.
constexpr int kThreadUnroll = 8;
constexpr int kWarpUnroll = 8;
constexpr int kBlockUnroll = 4;

// One thread copies alone.
template <int kUnroll = kThreadUnroll>
EP_DEVICE void put_thread(void* dst_mine, const void* src, size_t bytes, int peer) {
    copy_bytes<kUnroll>(peer_ptr(static_cast<char*>(dst_mine), peer), src, bytes, 0, 1);
}

// All 32 lanes of a warp call with the same arguments.
template <int kUnroll = kWarpUnroll>
EP_DEVICE void put_warp(void* dst_mine, const void* src, size_t bytes, int peer) {
    copy_bytes<kUnroll>(peer_ptr(static_cast<char*>(dst_mine), peer), src, bytes, lane_id(), kWarpSize);
}

// All threads of a block call with the same arguments.
template <int kUnroll = kBlockUnroll>
EP_DEVICE void put_block(void* dst_mine, const void* src, size_t bytes, int peer) {
    copy_bytes<kUnroll>(peer_ptr(static_cast<char*>(dst_mine), peer), src, bytes, thread_in_block(),
                        threads_in_block());
}

}  // namespace ep

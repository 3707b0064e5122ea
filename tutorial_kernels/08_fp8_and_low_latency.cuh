// Code that the rungs of 08_fp8_and_low_latency.cu share: copies, FP8 slots, and where a token goes.
#pragma once
#include <ep/fp8.cuh>
#include <ep/packet.cuh>

namespace {

// The sizes and arrays of a small batch. Every rank has the same number of tokens, each with `top_k` (1 to 8) experts.
struct Batch {
    int4* slots;          // symmetric [experts_per_rank, ranks, tokens, slot_vectors]
    uint64_t* flags;      // symmetric [experts_per_rank, ranks, tokens]
    ep::TaggedWord* ids;  // symmetric [ranks, tokens]
    int tokens, top_k, experts_per_rank, hidden;

    EP_DEVICE int slot_vectors() const { return (hidden + hidden / 32 + 15) / 16; }  // one byte per element, and scales
};

EP_DEVICE void copy_row(int4* to, const int4* from, int vectors) {
    for (int i = ep::lane_id(); i < vectors; i += ep::kWarpSize) ep::st_na_v4(to + i, ep::ld_na_v4(from + i));
}

EP_DEVICE void copy_words(uint64_t* to, const uint64_t* from, int words) {
    for (int i = ep::lane_id(); i < words; i += ep::kWarpSize) to[i] = from[i];
}

// The scales lie behind the row's bytes.
EP_DEVICE float* scales_of(void* slot, int hidden) {
    return reinterpret_cast<float*>(static_cast<char*>(slot) + hidden);
}

// A warp turns an FP8 row back into float32: each element times the scale of its group.
EP_DEVICE void read_fp8_row(const char* slot, int hidden, float* out) {
    const float* const scales = reinterpret_cast<const float*>(slot + hidden);
    for (int i = ep::lane_id(); i < hidden; i += ep::kWarpSize) {
        __nv_fp8_e4m3 number;
        number.__x = static_cast<__nv_fp8_storage_t>(slot[i]);
        out[i] = static_cast<float>(number) * scales[i / ep::kFp8Group];
    }
}

// A token's experts in one word, one byte each: a packet's worth.
EP_DEVICE uint64_t pack_ids(const Batch& batch, const int* topk_idx, int token) {
    uint64_t ids = 0;
    for (int k = 0; k < batch.top_k; ++k) {
        ids |= static_cast<uint64_t>(topk_idx[token * batch.top_k + k]) << (8 * k);
    }
    return ids;
}

EP_DEVICE int expert_of(uint64_t ids, int k) { return static_cast<int>(ids >> (8 * k) & 0xff); }

EP_DEVICE bool goes_to(const Batch& batch, uint64_t ids, int rank) {
    for (int k = 0; k < batch.top_k; ++k) {
        if (expert_of(ids, k) / batch.experts_per_rank == rank) return true;
    }
    return false;
}

// The k-th expert as this rank numbers its own, or -1: it lives elsewhere.
EP_DEVICE int own_expert(const Batch& batch, uint64_t ids, int k) {
    const int expert = expert_of(ids, k);
    return expert / batch.experts_per_rank == ep::rank() ? expert % batch.experts_per_rank : -1;
}

EP_DEVICE int place_of(const Batch& batch, int expert, int source, int token) {
    return (expert * ep::num_ranks() + source) * batch.tokens + token;
}

// A warp tells all ranks, its own too, which experts the token has: lane r tells rank r.
EP_DEVICE uint64_t send_ids(const Batch& batch, const int* topk_idx, int token) {
    const uint64_t ids = pack_ids(batch, topk_idx, token);
    ep::TaggedWord* const packet = batch.ids + ep::rank() * batch.tokens + token;
    if (ep::lane_id() < ep::num_ranks()) ep::send_packet(packet, ids, 1, ep::lane_id());
    return ids;
}

// Each lane waits for its own packet.
EP_DEVICE bool wait_ids(const Batch& batch, int source, int token, uint64_t* ids) {
    return ep::wait_packet(batch.ids + source * batch.tokens + token, 1, ids, {ep::kPhaseLayout, source, token});
}

}  // namespace

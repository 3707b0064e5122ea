// Low-latency dispatch, the half that sends: ids first, then rows, then their flags. <moe/low_latency/dispatch.cuh> tells
// the whole.
#pragma once
#include <ep/fp8.cuh>
#include <moe/low_latency/common.cuh>

namespace ep {

struct LowLatencyDispatchArgs {
    LowLatencyArgs common;
    int4* slots;          // symmetric [kTurns, ranks, max_tokens, row_vectors]   rows by source and token
    uint64_t* row_flags;  // symmetric [kTurns, ranks, max_tokens]
    TaggedWord* routes;   // symmetric [kTurns, ranks, 1 + max_tokens * route_words(top_k)]   count, then ids
    TaggedWord* weights;  // symmetric [kTurns, ranks, max_tokens * weight_words(top_k)]   for the combine, if given
};

// What arrives. All of it is this rank's own memory.
struct LowLatencyArrivals {
    int4* rows;         // [experts_per_rank, ranks * max_tokens, row_vectors of a bfloat16 or FP8 row]
    float* scales;      // [experts_per_rank, ranks * max_tokens, hidden / 128] or null
    int* counts;        // [experts_per_rank]
    int* places;        // [ranks, max_tokens, top_k]   expert * ranks * max_tokens + row; -1: not here
    int* token_counts;  // [ranks]   tokens of each source; `places` of others mean nothing
    float* weights;     // [ranks, max_tokens, top_k]   where `places` are not -1; null: none travel
};

constexpr int kIdsAWord = 4;
constexpr int kIdRepeated = 0x4000;  // the token has named this expert before
constexpr int kNoId = 0xffff;
constexpr int kMaxLowLatencyExperts = kIdRepeated;  // on one rank

EP_HOST_DEVICE int route_words(int top_k) { return (top_k + kIdsAWord - 1) / kIdsAWord; }

namespace detail {

EP_DEVICE int id_of(uint64_t word, int k) { return static_cast<int>(word >> (16 * (k % kIdsAWord)) & 0xffff); }

EP_DEVICE int64_t route_stride(const LowLatencyArgs& common) {
    return 1 + static_cast<int64_t>(common.max_tokens) * route_words(common.top_k);
}

// A warp sends one token's ids to all ranks; lane k has the k-th choice.
EP_DEVICE void send_route(const LowLatencyDispatchArgs& args, int token, int expert, uint64_t operation, int turn,
                          const uint8_t* masked) {
    const LowLatencyArgs& common = args.common;
    const int words = route_words(common.top_k), ranks = num_ranks(), lane = lane_id();
    TaggedWord* const mine = args.routes + (turn * ranks + rank()) * route_stride(common) + 1;
    const unsigned same = __match_any_sync(kFullWarp, expert);
    const bool repeated = __ffs(same) - 1 < lane;
    const int home = expert < 0 ? -1 : expert / common.experts_per_rank;
    const int id = expert % common.experts_per_rank | (repeated ? kIdRepeated : 0);
#pragma unroll 1
    for (int base = 0; base < ranks * words; base += kWarpSize) {
        const int i = base + lane, word = i % words, r = i / words;
        uint64_t packed = 0;
        for (int j = 0; j < kIdsAWord; ++j) {
            const int k = (word * kIdsAWord + j) % kWarpSize;
            const int its_home = __shfl_sync(kFullWarp, home, k), its_id = __shfl_sync(kFullWarp, id, k);
            packed |= static_cast<uint64_t>(its_home == r ? its_id : kNoId) << (16 * j);
        }
        if (r < ranks && !masked[r]) {
            send_packet(mine + static_cast<int64_t>(token) * words + word, packed, operation, r);
        }
    }
}

// A block sends the ids of its tokens, and weights if there are any, a warp a token; `expert` is the choice of the first.
template <typename Index>
EP_DEVICE void send_routes(const LowLatencyDispatchArgs& args, const Index* topk_idx, const float* topk_weights,
                           int expert, Share share, uint64_t operation, int turn, const uint8_t* masked) {
    const LowLatencyArgs& common = args.common;
    if (share.index == 0) {
        TaggedWord* const mine = args.routes + (turn * num_ranks() + rank()) * route_stride(common);
#pragma unroll 1
        for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
            if (!masked[r]) send_packet(mine, common.num_tokens, operation, r);
        }
    }
    const int step = share.count * warps_in_block();
#pragma unroll 1
    for (int token = share.index + warp_id() * share.count; token < common.num_tokens; token += step) {
        send_route(args, token, expert, operation, turn, masked);
        if (topk_weights) {
            const float weight = load_weight(common, topk_weights, token);
            send_weights_of(common, args.weights, token, expert, weight, operation, turn, masked);
        }
        expert = load_choice(common, topk_idx, token + step);
    }
}

// What a thread moves of a row at once: of FP8, two vectors become one.
template <bool kFp8>
struct Piece {
    int4 first, second;
    EP_DEVICE void load(const int4* row, int i, int vectors) {
        if (i >= vectors) return;
        first = ld_nc_v4(kFp8 ? row + 2 * i : row + i);
        if (kFp8) second = ld_nc_v4(row + 2 * i + 1);
    }
};

// In which order a token goes to the ranks: not everybody to the same one first, and here last, which needs no link.
EP_DEVICE int nth_target(int token, int n) {
    const int others = num_ranks() - 1;
    return n == others ? rank() : (rank() + 1 + (token + n) % others) % num_ranks();
}

// A block sends a row to all ranks of `to`; `piece` holds each thread's first part of it.
template <bool kFp8>
EP_DEVICE void send_row(const LowLatencyDispatchArgs& args, const int4* row, int64_t slot, int token, const RankSet& to,
                        Piece<kFp8> piece, const uint8_t* masked) {
    constexpr int kLanesPerGroup = kFp8Group / kFp8Elements;
    const int row_vectors = args.common.row_vectors, vectors = kFp8 ? row_vectors / 2 : row_vectors;
    int4* const target = args.slots + slot * row_vectors;
    float* const scales = reinterpret_cast<float*>(target + vectors);
#pragma unroll 1
    for (int base = 0; base < vectors; base += threads_in_block()) {
        const int i = base + thread_in_block();
        int4 v = piece.first;
        float scale = 0.0f;
        if (kFp8) v = quantize_fp8(piece.first, piece.second, &scale);
        piece.load(row, i + threads_in_block(), vectors);
#pragma unroll 1
        for (int n = 0; n < num_ranks(); ++n) {
            const int r = nth_target(token, n);
            if (!to.has(r) || masked[r] || i >= vectors) continue;
            st_na_v4(peer_ptr(target + i, r), v);
            if (kFp8 && i % kLanesPerGroup == 0) *peer_ptr(scales + i / kLanesPerGroup, r) = scale;
        }
    }
}

// A block sends its rows; `expert` and `piece` are of the first one, asked for earlier.
template <bool kFp8, typename Index>
EP_DEVICE void send_rows(const LowLatencyDispatchArgs& args, const int4* x, const Index* topk_idx, int expert,
                         Piece<kFp8> piece, Share share, uint64_t operation, int turn, const uint8_t* masked) {
    const LowLatencyArgs& common = args.common;
    const int vectors = kFp8 ? common.row_vectors / 2 : common.row_vectors;
    int signalling = 0;  // which warp; the release holds it up, so they take turns
#pragma unroll 1
    for (int token = share.index; token < common.num_tokens; token += share.count) {
        const int64_t slot = static_cast<int64_t>(turn * num_ranks() + rank()) * common.max_tokens + token;
        const RankSet to = ranks_of(expert, common.experts_per_rank);
        const int4* const row = x + static_cast<int64_t>(token) * common.row_vectors;
        const Piece<kFp8> here = piece;
        const int next = token + share.count;
        expert = load_choice(common, topk_idx, next);
        if (next < common.num_tokens) {
            piece.load(x + static_cast<int64_t>(next) * common.row_vectors, thread_in_block(), vectors);
        }
        send_row<kFp8>(args, row, slot, token, to, here, masked);
        __syncthreads();  // data, then signal
        if (warp_id() == signalling) {
#pragma unroll 1
            for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
                if (to.has(r) && !masked[r]) st_release_sys_u64(peer_ptr(args.row_flags + slot, r), operation);
            }
        }
        signalling = (signalling + 1) % warps_in_block();
    }
}

}  // namespace detail
}  // namespace ep

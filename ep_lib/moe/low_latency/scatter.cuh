// Low-latency dispatch, the half that receives: the places of rows from everybody's ids, then the rows themselves as they
// come. <moe/low_latency/dispatch.cuh> tells the whole.
#pragma once
#include <moe/low_latency/send.cuh>

namespace ep {

constexpr int kRowsAtOnce = 32;  // of a receiving block

// Dynamic shared memory: a count for each expert of this rank.
EP_HOST_DEVICE size_t low_latency_dispatch_shared(int experts_per_rank) { return experts_per_rank * sizeof(int); }

namespace detail {

// A row that this block receives.
struct Arriving {
    int source;
    int token;
    int num_targets;
    int targets[kMaxLowLatencyTopK];  // where it goes, each place once
};

// What a receiving block keeps in shared memory.
struct Receiving {
    int tokens[kMaxRanks];  // of each source
    uint64_t words[kRowsAtOnce * (kMaxLowLatencyTopK / kIdsAWord)];
    Arriving rows[kRowsAtOnce];
};

// Row i of all tokens, sorted by source, then token.
EP_DEVICE int2 find_token(const int* tokens, int i) {
    int source = 0;
    while (i >= tokens[source]) i -= tokens[source++];
    return make_int2(source, i);
}

// One thread waits for a word of ids; all are -1 if the source is masked. False after a fault.
EP_DEVICE bool wait_route(const LowLatencyDispatchArgs& args, int turn, int2 token, int word, uint64_t operation,
                          uint64_t* ids) {
    const int words = route_words(args.common.top_k);
    const TaggedWord* const routes = args.routes + (turn * num_ranks() + token.x) * route_stride(args.common);
    const WaitOutcome outcome =
        wait_packet_or_mask(args.common, routes + 1 + static_cast<int64_t>(token.y) * words + word, operation, ids,
                            {kPhaseLayout, token.x, token.y});
    if (outcome == kMasked) *ids = ~0ull;
    return outcome != kGaveUp;
}

// One warp gives the places of one row: lane k has the k-th choice. `counts` are rows so far, by expert.
EP_DEVICE void place_row(const LowLatencyDispatchArgs& args, const LowLatencyArrivals& arrivals, Arriving* row,
                         const uint64_t* words, int* counts) {
    const LowLatencyArgs& common = args.common;
    const int k = lane_id(), capacity = num_ranks() * common.max_tokens;
    const int id = k < common.top_k ? id_of(words[k / kIdsAWord], k) : kNoId;
    const bool here = id != kNoId, first = here && !(id & kIdRepeated);
    const int expert = id & (kIdRepeated - 1);
    int place = -1;
    if (first) {
        place = expert * capacity + counts[expert];
        ++counts[expert];  // the lanes' experts differ
    }
    const unsigned same = __match_any_sync(kFullWarp, here ? expert : -1 - k);
    const int shared = __shfl_sync(kFullWarp, place, __ffs(same) - 1);
    const unsigned firsts = __ballot_sync(kFullWarp, first);
    if (first) row->targets[__popc(firsts & ((1u << k) - 1))] = place;
    if (k == 0) row->num_targets = __popc(firsts);
    if (k < common.top_k) {
        const int64_t index = static_cast<int64_t>(row->source) * common.max_tokens + row->token;
        arrivals.places[index * common.top_k + k] = here ? shared : -1;
    }
    __syncwarp();  // the counts are for the next row
}

// The threads of a block wait for the weights of its rows' choices here and keep them for the combine. False after a
// fault.
EP_DEVICE bool keep_weights(const LowLatencyDispatchArgs& args, const LowLatencyArrivals& arrivals,
                            const Receiving& receiving, int num_rows, uint64_t operation, int turn) {
    const LowLatencyArgs& common = args.common;
    const int words = weight_words(common.top_k), id_words = route_words(common.top_k);
#pragma unroll 1
    for (int i = thread_in_block(); i < num_rows * words; i += threads_in_block()) {
        const int row = i / words, word = i % words, first = word * kWeightsAWord;
        const int source = receiving.rows[row].source, token = receiving.rows[row].token;
        const auto is_here = [&](int k) {
            return k < common.top_k && id_of(receiving.words[row * id_words + k / kIdsAWord], k) != kNoId;
        };
        if (!is_here(first) && !is_here(first + 1)) continue;
        uint64_t packed = 0;
        const TaggedWord* const packet = weights_of(common, args.weights, turn, source, token) + word;
        if (wait_packet_or_mask(common, packet, operation, &packed, {kPhaseLayout, source, token}) == kGaveUp) {
            return false;
        }
        float* const kept =
            arrivals.weights + (static_cast<int64_t>(source) * common.max_tokens + token) * common.top_k;
        for (int k = first; k < min(first + kWeightsAWord, common.top_k); ++k) kept[k] = weight_in(packed, k);
    }
    return true;
}

// A warp copies vectors `begin` to `end` of a row to its places, and the row's scales, if there are any. `from` null:
// zeros.
EP_DEVICE void spread_row(const int4* from, const Arriving& row, const LowLatencyArrivals& to, int vectors, int begin,
                          int end, int num_scales) {
    constexpr int kInFlight = 6, kScalesInFlight = 2;
    const float* const scales = reinterpret_cast<const float*>(from + vectors);
    int4 v[kInFlight] = {};
    float s[kScalesInFlight] = {};
#pragma unroll 1
    for (int base = lane_id(); base < num_scales || begin < end;
         base += kScalesInFlight * kWarpSize, begin += kInFlight * kWarpSize) {
        const int first = begin + lane_id();
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
            if (from && first + u * kWarpSize < end) v[u] = ld_na_v4(from + first + u * kWarpSize);
        }
#pragma unroll
        for (int u = 0; u < kScalesInFlight; ++u) {
            if (from && base + u * kWarpSize < num_scales) s[u] = scales[base + u * kWarpSize];
        }
#pragma unroll 1
        for (int t = 0; t < row.num_targets; ++t) {
            int4* const target = to.rows + static_cast<int64_t>(row.targets[t]) * vectors;
#pragma unroll
            for (int u = 0; u < kInFlight; ++u) {
                if (first + u * kWarpSize < end) st_na_v4(target + first + u * kWarpSize, v[u]);
            }
#pragma unroll
            for (int u = 0; u < kScalesInFlight; ++u) {
                const int i = base + u * kWarpSize;
                if (i < num_scales) to.scales[static_cast<int64_t>(row.targets[t]) * num_scales + i] = s[u];
            }
        }
    }
}

// The warps of a block copy its rows: each row in as many pieces as keep all warps busy. False after a fault.
template <bool kFp8>
EP_DEVICE bool spread_rows(const LowLatencyDispatchArgs& args, const LowLatencyArrivals& arrivals,
                           const Receiving& receiving, int num_rows, uint64_t operation, int turn) {
    const LowLatencyArgs& common = args.common;
    const int vectors = kFp8 ? common.row_vectors / 2 : common.row_vectors, warps = warps_in_block();
    const int pieces = max(1, warps / num_rows), num_scales = vectors * 16 / kFp8Group;
#pragma unroll 1
    for (int unit = warp_id(); unit < num_rows * pieces; unit += warps) {
        const Arriving& row = receiving.rows[unit % num_rows];
        if (row.num_targets == 0) continue;
        const int piece = unit / num_rows;
        const int64_t slot = static_cast<int64_t>(turn * num_ranks() + row.source) * common.max_tokens + row.token;
        int outcome = kArrived;
        if (lane_id() == 0) {
            outcome =
                wait_flag_or_mask(common, args.row_flags + slot, operation, {kPhaseDispatch, row.source, row.token});
        }
        outcome = __shfl_sync(kFullWarp, outcome, 0);
        __syncwarp();  // what lane 0 acquired, all may read
        if (outcome == kGaveUp) return false;
        // Zeros, if the source is gone: the places are given already.
        const int4* const from = outcome == kArrived ? args.slots + slot * common.row_vectors : nullptr;
        spread_row(from, row, arrivals, vectors, vectors * piece / pieces, vectors * (piece + 1) / pieces,
                   kFp8 && piece == pieces - 1 ? num_scales : 0);
    }
    return true;
}

template <bool kFp8>
EP_DEVICE bool receive_rows(const LowLatencyDispatchArgs& args, const LowLatencyArrivals& arrivals, Share share,
                            uint64_t operation, int turn, const uint8_t* masked) {
    extern __shared__ int low_latency_counts[];  // [experts_per_rank]   rows before the next one, by expert
    __shared__ Receiving receiving;
    const LowLatencyArgs& common = args.common;
    const int ranks = num_ranks(), words = route_words(common.top_k), thread = thread_in_block();
    int failed = 0;
#pragma unroll 1
    for (int e = thread; e < common.experts_per_rank; e += threads_in_block()) low_latency_counts[e] = 0;
#pragma unroll 1
    for (int s = thread; s < ranks; s += threads_in_block()) {
        const TaggedWord* const routes = args.routes + (turn * ranks + s) * route_stride(common);
        uint64_t tokens = 0;
        WaitOutcome outcome = kMasked;
        if (!masked[s]) {
            outcome = wait_packet_or_mask(common, routes, operation, &tokens, {kPhaseLayout, s, -1});
        }
        failed |= outcome == kGaveUp;
        receiving.tokens[s] = outcome == kArrived ? static_cast<int>(tokens) : 0;
    }
    if (__syncthreads_or(failed)) return false;

    int64_t total = 0;
#pragma unroll 1
    for (int s = 0; s < ranks; ++s) total += receiving.tokens[s];
    const int begin = static_cast<int>(total * share.index / share.count);
    const int end = static_cast<int>(total * (share.index + 1) / share.count);
#pragma unroll 1
    for (int i = thread; i < begin * words; i += threads_in_block()) {  // rows of the blocks before
        uint64_t ids;
        failed |= !wait_route(args, turn, find_token(receiving.tokens, i / words), i % words, operation, &ids);
        if (failed) break;
        for (int k = 0; k < kIdsAWord; ++k) {
            const int id = id_of(ids, k);
            if (!(id & kIdRepeated)) atomicAdd(&low_latency_counts[id], 1);  // kNoId has that bit, too
        }
    }
#pragma unroll 1
    for (int first = begin; first < end; first += kRowsAtOnce) {
        const int num_rows = min(kRowsAtOnce, end - first);
#pragma unroll 1
        for (int i = thread; i < num_rows * words && !failed; i += threads_in_block()) {
            const int2 token = find_token(receiving.tokens, first + i / words);
            failed |= !wait_route(args, turn, token, i % words, operation, &receiving.words[i]);
            if (i % words == 0) {
                receiving.rows[i / words].source = token.x;
                receiving.rows[i / words].token = token.y;
            }
        }
        if (__syncthreads_or(failed)) return false;
        if (warp_id() == 0) {
#pragma unroll 1
            for (int i = 0; i < num_rows; ++i) {
                place_row(args, arrivals, &receiving.rows[i], &receiving.words[i * words], low_latency_counts);
            }
        }
        __syncthreads();
        if (arrivals.weights) failed |= !keep_weights(args, arrivals, receiving, num_rows, operation, turn);
        failed |= !spread_rows<kFp8>(args, arrivals, receiving, num_rows, operation, turn);
        if (__syncthreads_or(failed)) return false;  // and the rows' records are written again
    }
    if (__syncthreads_or(failed)) return false;
    if (share.index == share.count - 1) {  // no rows come after this block's
#pragma unroll 1
        for (int e = thread; e < common.experts_per_rank; e += threads_in_block()) {
            arrivals.counts[e] = low_latency_counts[e];
        }
#pragma unroll 1
        for (int s = thread; s < ranks; s += threads_in_block()) arrivals.token_counts[s] = receiving.tokens[s];
    }
    return true;
}

}  // namespace detail
}  // namespace ep

// Low-latency dispatch: a token crosses once to each rank that holds its experts, and is scattered to them there.
//
// Sender, one block per token: first the token's expert ids go to all ranks in packets (<ep/packet.cuh>: no order
// needed), then the row, cast to FP8 on its way, to slot (this rank, token) of each rank that needs it, then one flag
// per row.
//
// Receiver, the same blocks: from the ids of all tokens, which arrive first, every block computes recv_index of a few
// rows while these rows are still in flight. The rows of an expert are sorted by source rank, then by token, so they
// lie at the same index on every run. An atomic counter would be simpler, but the order, and with it the bits of any
// later sum, would change from run to run. Then each warp waits for one row's flag and copies the row to its experts.
//
// DeepEP's low-latency kernels send a token once for each expert; with 8 experts on 4 ranks that is 2.2 times the bytes.
#include <ep/fp8.cuh>
#include <moe/low_latency/common.cuh>

namespace ep::low_latency {

struct DispatchArgs {
    Args common;
    int4* slots;          // symmetric [kNumBuffers, ranks, max_tokens, row_vectors]   rows by source and token
    uint64_t* row_flags;  // symmetric [kNumBuffers, ranks, max_tokens]
    TaggedWord* routes;   // symmetric [kNumBuffers, ranks, 1 + max_tokens * route_words(top_k)]   count, then ids
    TaggedWord* weights;  // symmetric [kNumBuffers, ranks, max_tokens * weight_words(top_k)]   for the combine, or null
};

// The arrays for arriving rows, in this rank's own memory.
struct Arrivals {
    int4* rows;         // [experts_per_rank, ranks * max_tokens, row_vectors of a bfloat16 or FP8 row]
    float* scales;      // [experts_per_rank, ranks * max_tokens, hidden / 128] or null
    int* counts;        // [experts_per_rank]
    int* recv_index;    // [ranks, max_tokens, top_k]   expert * ranks * max_tokens + row; -1: not here
    int* token_counts;  // [ranks]   tokens of each source; recv_index of further tokens is undefined
    int* sent_idx;      // [max_tokens, top_k]   this rank's own choices: the combine finds its weights by them
    float* weights;     // [ranks, max_tokens, top_k]   where recv_index is not -1; null: none travel
    int* totals;        // [experts_per_rank]   counts are added to it; or null
    int scale_stride;   // from a row's scale to its next one: 1, or ranks * max_tokens for scales by column
};

// ---- The half that sends: ids first, then rows, then their flags -----------------------------------------------------

constexpr int kIdsPerWord = 4;
constexpr int kIdRepeated = 0x4000;  // the token has named this expert before
constexpr int kNoId = 0xffff;
constexpr int kMaxExperts = kIdRepeated;  // on one rank

EP_HOST_DEVICE int route_words(int top_k) { return (top_k + kIdsPerWord - 1) / kIdsPerWord; }

EP_DEVICE int id_of(uint64_t word, int k) { return static_cast<int>(word >> (16 * (k % kIdsPerWord)) & 0xffff); }

EP_DEVICE int64_t route_stride(const Args& common) {
    return 1 + static_cast<int64_t>(common.max_tokens) * route_words(common.top_k);
}

// A warp sends one token's ids to all ranks; lane k has the k-th choice.
EP_DEVICE void send_route(const DispatchArgs& args, int token, int expert, uint64_t epoch, int buffer,
                          const uint8_t* masked) {
    const Args& common = args.common;
    const int words = route_words(common.top_k), ranks = num_ranks(), lane = lane_id();
    TaggedWord* const mine = args.routes + (buffer * ranks + rank()) * route_stride(common) + 1;
    const unsigned same = __match_any_sync(kFullWarp, expert);
    const bool repeated = __ffs(same) - 1 < lane;
    const int home = expert < 0 ? -1 : expert / common.experts_per_rank;
    const int id = expert % common.experts_per_rank | (repeated ? kIdRepeated : 0);
#pragma unroll 1
    for (int base = 0; base < ranks * words; base += kWarpSize) {
        const int i = base + lane, word = i % words, r = i / words;
        uint64_t packed = 0;
        for (int j = 0; j < kIdsPerWord; ++j) {
            const int k = (word * kIdsPerWord + j) % kWarpSize;
            const int its_home = __shfl_sync(kFullWarp, home, k), its_id = __shfl_sync(kFullWarp, id, k);
            packed |= static_cast<uint64_t>(its_home == r ? its_id : kNoId) << (16 * j);
        }
        if (r < ranks && !masked[r]) {
            send_packet(mine + static_cast<int64_t>(token) * words + word, packed, epoch, r);
            count_piece(kCountPackets);
        }
    }
}

// A block sends the ids of its tokens, and weights if there are any, one warp per token. `expert`: the lane's choice of
// the first token. `refused`, in shared memory, becomes 1 if an id is invalid. `sent_idx` null: another block keeps
// ids.
template <typename Index>
EP_DEVICE void send_routes(const DispatchArgs& args, int* sent_idx, const Index* topk_idx, const float* topk_weights,
                           int expert, Share share, uint64_t epoch, int buffer, const uint8_t* masked, int* refused) {
    const Args& common = args.common;
    if (share.index == 0) {
        TaggedWord* const mine = args.routes + (buffer * num_ranks() + rank()) * route_stride(common);
#pragma unroll 1
        for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
            if (masked[r]) continue;
            send_packet(mine, common.num_tokens, epoch, r);
            count_piece(kCountPackets);
        }
    }
    const int step = share.count * warps_in_block();
#pragma unroll 1
    for (int token = share.index + warp_id() * share.count; token < common.num_tokens; token += step) {
        if (expert == kBadChoice) {
            refuse_choice(common, topk_idx, token, kPhaseDispatch, kNoExpert);
            *refused = 1;
        }
        if (sent_idx && lane_id() < common.top_k) {
            sent_idx[static_cast<int64_t>(token) * common.top_k + lane_id()] = expert;
        }
        send_route(args, token, expert, epoch, buffer, masked);
        if (topk_weights) {
            const float weight = load_weight(common, topk_weights, token);
            send_weights_of(common, args.weights, token, expert, weight, epoch, buffer, masked);
        }
        expert = load_choice(common, topk_idx, token + step);
    }
}

// The part of a row that a thread moves at once; for FP8, two vectors become one.
template <bool kFp8>
struct Piece {
    int4 first, second;
    EP_DEVICE void load(const int4* row, int i, int vectors) {
        if (i >= vectors) return;
        first = ld_nc_v4(kFp8 ? row + 2 * i : row + i);
        if (kFp8) second = ld_nc_v4(row + 2 * i + 1);
    }
};

// The order in which a token goes to the ranks: different first ranks for different tokens, and this rank, which needs
// no link, last.
EP_DEVICE int nth_target(int token, int n) {
    const int others = num_ranks() - 1;
    return n == others ? rank() : (rank() + 1 + (token + n) % others) % num_ranks();
}

// A block sends a row to all ranks of `to`; `piece` holds each thread's first part of it.
template <bool kFp8>
EP_DEVICE void send_row(const DispatchArgs& args, const int4* row, int64_t slot, int token, const RankSet& to,
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

// A block sends its rows; `expert` and `piece` are of the first one, loaded earlier.
template <bool kFp8, typename Index>
EP_DEVICE void send_rows(const DispatchArgs& args, const int4* x, const Index* topk_idx, int expert, Piece<kFp8> piece,
                         Share share, uint64_t epoch, int buffer, const uint8_t* masked) {
    const Args& common = args.common;
    const int vectors = kFp8 ? common.row_vectors / 2 : common.row_vectors;
    int signalling = 0;  // the warp that signals: warps take turns, since a release stalls the warp
#pragma unroll 1
    for (int token = share.index; token < common.num_tokens; token += share.count) {
        const int64_t slot = static_cast<int64_t>(buffer * num_ranks() + rank()) * common.max_tokens + token;
        const RankSet to = ranks_of(expert, common.experts_per_rank);
        const int4* const row = x + static_cast<int64_t>(token) * common.row_vectors;
        const Piece<kFp8> here = piece;
        const int next = token + share.count;
        expert = load_choice(common, topk_idx, next);
        if (next < common.num_tokens) {
            piece.load(x + static_cast<int64_t>(next) * common.row_vectors, thread_in_block(), vectors);
        }
        send_row<kFp8>(args, row, slot, token, to, here, masked);
        if (kFp8 && thread_in_block() == 0) count_piece(kCountFp8Rows);
        __syncthreads();  // data, then signal
        if (warp_id() == signalling) {
#pragma unroll 1
            for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
                if (to.has(r) && !masked[r]) st_release_sys_u64(peer_ptr(args.row_flags + slot, r), epoch);
            }
        }
        signalling = (signalling + 1) % warps_in_block();
    }
}

// ---- The half that receives: recv_index from all ranks' ids, then the rows themselves as they come ------------------

constexpr int kRowsAtOnce = 32;  // of a receiving block

// A row that this block receives.
struct Arriving {
    int source;
    int token;
    int num_targets;
    int targets[kMaxTopK];  // its target rows in `Arrivals`, each once
};

// A receiving block's state in shared memory.
struct Receiving {
    int tokens[kMaxRanks];  // of each source
    uint64_t words[kRowsAtOnce * (kMaxTopK / kIdsPerWord)];
    Arriving rows[kRowsAtOnce];
};

// Row i of all tokens, sorted by source, then token.
EP_DEVICE int2 find_token(const int* tokens, int i) {
    int source = 0;
    while (i >= tokens[source]) i -= tokens[source++];
    return make_int2(source, i);
}

// One thread waits for a word of ids; all are -1 if the source is masked. False after a fault.
EP_DEVICE bool wait_route(const DispatchArgs& args, int buffer, int2 token, int word, uint64_t epoch, uint64_t* ids) {
    const int words = route_words(args.common.top_k);
    const TaggedWord* const routes = args.routes + (buffer * num_ranks() + token.x) * route_stride(args.common);
    const WaitOutcome outcome =
        wait_packet_or_mask(args.common, routes + 1 + static_cast<int64_t>(token.y) * words + word, epoch, ids,
                            {kPhaseLayout, token.x, token.y});
    if (outcome == kMasked) *ids = ~0ull;
    return outcome != kGaveUp;
}

// One warp computes recv_index of one row: lane k has the k-th choice. `counts`: rows so far, by expert.
EP_DEVICE void index_row(const DispatchArgs& args, const Arrivals& arrivals, Arriving* row, const uint64_t* words,
                         int* counts) {
    const Args& common = args.common;
    const int k = lane_id(), capacity = num_ranks() * common.max_tokens;
    const int id = k < common.top_k ? id_of(words[k / kIdsPerWord], k) : kNoId;
    const bool here = id != kNoId, first = here && !(id & kIdRepeated);
    const int expert = id & (kIdRepeated - 1);
    int index = -1;
    if (first) {
        index = expert * capacity + counts[expert];
        ++counts[expert];  // the lanes' experts differ
    }
    const unsigned same = __match_any_sync(kFullWarp, here ? expert : -1 - k);
    const int shared = __shfl_sync(kFullWarp, index, __ffs(same) - 1);
    const unsigned firsts = __ballot_sync(kFullWarp, first);
    if (first) row->targets[__popc(firsts & ((1u << k) - 1))] = index;
    if (k == 0) row->num_targets = __popc(firsts);
    if (k < common.top_k) {
        const int64_t token = static_cast<int64_t>(row->source) * common.max_tokens + row->token;
        arrivals.recv_index[token * common.top_k + k] = here ? shared : -1;
    }
    __syncwarp();  // the counts are for the next row
}

// The threads of a block wait for the weights of its rows' choices here and keep them for the combine. False after a
// fault.
EP_DEVICE bool keep_weights(const DispatchArgs& args, const Arrivals& arrivals, const Receiving& receiving,
                            int num_rows, uint64_t epoch, int buffer) {
    const Args& common = args.common;
    const int words = weight_words(common.top_k), id_words = route_words(common.top_k);
#pragma unroll 1
    for (int i = thread_in_block(); i < num_rows * words; i += threads_in_block()) {
        const int row = i / words, word = i % words, first = word * kWeightsPerWord;
        const int source = receiving.rows[row].source, token = receiving.rows[row].token;
        const auto is_here = [&](int k) {
            return k < common.top_k && id_of(receiving.words[row * id_words + k / kIdsPerWord], k) != kNoId;
        };
        if (!is_here(first) && !is_here(first + 1)) continue;
        uint64_t packed = 0;
        const TaggedWord* const packet = weights_of(common, args.weights, buffer, source, token) + word;
        if (wait_packet_or_mask(common, packet, epoch, &packed, {kPhaseLayout, source, token}) == kGaveUp) {
            return false;
        }
        float* const kept =
            arrivals.weights + (static_cast<int64_t>(source) * common.max_tokens + token) * common.top_k;
        for (int k = first; k < min(first + kWeightsPerWord, common.top_k); ++k) kept[k] = weight_in(packed, k);
    }
    return true;
}

// A warp copies vectors `begin` to `end` of a row to its targets, and the row's scales, if there are any. `from` null:
// NaN.
EP_DEVICE void scatter_row(const int4* from, const Arriving& row, const Arrivals& to, int vectors, int begin, int end,
                           int num_scales) {
    constexpr int kInFlight = 6, kScalesInFlight = 2;
    const float* const scales = reinterpret_cast<const float*>(from + vectors);
    int4 v[kInFlight];
    float s[kScalesInFlight];
    for (int4& vector : v) vector = make_int4(-1, -1, -1, -1);
    for (float& scale : s) scale = __int_as_float(-1);
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
            const int line = row.targets[t] % to.scale_stride;
            const int64_t first_scale = static_cast<int64_t>(row.targets[t] - line) * num_scales + line;
#pragma unroll
            for (int u = 0; u < kInFlight; ++u) {
                if (first + u * kWarpSize < end) st_na_v4(target + first + u * kWarpSize, v[u]);
            }
#pragma unroll
            for (int u = 0; u < kScalesInFlight; ++u) {
                const int64_t i = base + u * kWarpSize;
                if (i < num_scales) to.scales[first_scale + i * to.scale_stride] = s[u];
            }
        }
    }
}

// The warps of a block copy its rows, each in as many pieces as keep all warps busy. False after a fault.
template <bool kFp8>
EP_DEVICE bool scatter_rows(const DispatchArgs& args, const Arrivals& arrivals, const Receiving& receiving,
                            int num_rows, uint64_t epoch, int buffer) {
    const Args& common = args.common;
    const int vectors = kFp8 ? common.row_vectors / 2 : common.row_vectors, warps = warps_in_block();
    const int pieces = max(1, warps / num_rows), num_scales = vectors * 16 / kFp8Group;
#pragma unroll 1
    for (int unit = warp_id(); unit < num_rows * pieces; unit += warps) {
        const Arriving& row = receiving.rows[unit % num_rows];
        if (row.num_targets == 0) continue;
        const int piece = unit / num_rows;
        const int64_t slot = static_cast<int64_t>(buffer * num_ranks() + row.source) * common.max_tokens + row.token;
        int outcome = kArrived;
        if (lane_id() == 0) {
            outcome = wait_flag_or_mask(common, args.row_flags + slot, epoch, {kPhaseDispatch, row.source, row.token});
        }
        outcome = __shfl_sync(kFullWarp, outcome, 0);
        __syncwarp();  // all lanes may read what lane 0 acquired
        if (outcome == kGaveUp) return false;
        // NaN, if the source is gone: its rows have been counted already.
        const int4* const from = outcome == kArrived ? args.slots + slot * common.row_vectors : nullptr;
        scatter_row(from, row, arrivals, vectors, vectors * piece / pieces, vectors * (piece + 1) / pieces,
                    kFp8 && piece == pieces - 1 ? num_scales : 0);
    }
    return true;
}

template <bool kFp8>
EP_DEVICE bool receive_rows(const DispatchArgs& args, const Arrivals& arrivals, Share share, uint64_t epoch, int buffer,
                            const uint8_t* masked) {
    extern __shared__ int low_latency_counts[];  // [experts_per_rank]   rows before the next one, by expert
    __shared__ Receiving receiving;
    const Args& common = args.common;
    const int ranks = num_ranks(), words = route_words(common.top_k), thread = thread_in_block();
    int failed = 0;
#pragma unroll 1
    for (int e = thread; e < common.experts_per_rank; e += threads_in_block()) low_latency_counts[e] = 0;
#pragma unroll 1
    for (int s = thread; s < ranks; s += threads_in_block()) {
        const TaggedWord* const routes = args.routes + (buffer * ranks + s) * route_stride(common);
        uint64_t tokens = 0;
        WaitOutcome outcome = kMasked;
        if (!masked[s]) {
            outcome = wait_packet_or_mask(common, routes, epoch, &tokens, {kPhaseLayout, s, -1});
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
        failed |= !wait_route(args, buffer, find_token(receiving.tokens, i / words), i % words, epoch, &ids);
        if (failed) break;
        for (int k = 0; k < kIdsPerWord; ++k) {
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
            failed |= !wait_route(args, buffer, token, i % words, epoch, &receiving.words[i]);
            if (i % words == 0) {
                receiving.rows[i / words].source = token.x;
                receiving.rows[i / words].token = token.y;
            }
        }
        if (__syncthreads_or(failed)) return false;
        if (warp_id() == 0) {
#pragma unroll 1
            for (int i = 0; i < num_rows; ++i) {
                index_row(args, arrivals, &receiving.rows[i], &receiving.words[i * words], low_latency_counts);
            }
        }
        __syncthreads();
        if (arrivals.weights) failed |= !keep_weights(args, arrivals, receiving, num_rows, epoch, buffer);
        failed |= !scatter_rows<kFp8>(args, arrivals, receiving, num_rows, epoch, buffer);
        if (__syncthreads_or(failed)) return false;  // and the rows' records are written again
    }
    if (__syncthreads_or(failed)) return false;
    if (share.index == share.count - 1) {  // no rows come after this block's
#pragma unroll 1
        for (int e = thread; e < common.experts_per_rank; e += threads_in_block()) {
            arrivals.counts[e] = low_latency_counts[e];
            if (arrivals.totals) arrivals.totals[e] += low_latency_counts[e];
        }
#pragma unroll 1
        for (int s = thread; s < ranks; s += threads_in_block()) arrivals.token_counts[s] = receiving.tokens[s];
    }
    return true;
}

// The outputs of a failed dispatch: NaN in place of rows, and counts of 0.
template <bool kFp8>
EP_DEVICE void spoil_arrivals(const Args& common, const Arrivals& arrivals, const Fillers& fillers) {
    const int64_t tokens = static_cast<int64_t>(num_ranks()) * common.max_tokens;
    const int64_t rows = common.experts_per_rank * tokens, row_bytes = common.row_vectors * (kFp8 ? 8 : 16);
    fill_with_nan(arrivals.rows, rows * row_bytes, fillers);
    if (kFp8) fill_with_nan(arrivals.scales, rows * (row_bytes / kFp8Group) * sizeof(float), fillers);
    fill_with_nan(arrivals.recv_index, tokens * common.top_k * sizeof(int), fillers);
    fill_with_nan(arrivals.weights, tokens * common.top_k * sizeof(float), fillers);
    fill_with_zeros(arrivals.counts, common.experts_per_rank, fillers);
    fill_with_zeros(arrivals.token_counts, num_ranks(), fillers);
}

// ---- Both halves -----------------------------------------------------------------------------------------------------

// Any grid whose blocks all run at once, any whole number of warps; dynamic shared memory: an int for each expert of this
// rank. kWhole: both halves.
//   x             [num_tokens, row_vectors]   bfloat16; kFp8: hidden is a multiple of 128
//   topk_idx      [num_tokens, top_k]         global expert ids, -1: not routed; everything else is a fault
//   topk_weights  [num_tokens, top_k] or null   if given here, the combine need not send them first
template <bool kFp8, bool kWhole, typename Index>
EP_DEVICE void run_dispatch(const DispatchArgs& args, const Arrivals& arrivals, const int4* x, const Index* topk_idx,
                            const float* topk_weights) {
    const Args& common = args.common;
    const int halves = kWhole ? kSends | kReceives : common.halves;
    const Share sending = sending_share(common, halves), receiving = receiving_share(common, halves);
    const Share routing = halves == kReceives ? Share{0, 0} : receiving.count ? receiving : sending;
    // All first loads are issued together: one trip to memory takes as long as sending a tenth of the rows.
    int expert = -1, first_expert = -1;
    Piece<kFp8> piece;
    if (sending.count) {
        first_expert = load_choice(common, topk_idx, sending.index);
        if (sending.index < common.num_tokens) {
            piece.load(x + static_cast<int64_t>(sending.index) * common.row_vectors, thread_in_block(),
                       kFp8 ? common.row_vectors / 2 : common.row_vectors);
        }
    }
    if (routing.count) expert = load_choice(common, topk_idx, routing.index + warp_id() * routing.count);
    const uint64_t epoch = epoch_of(common, kDispatch, halves & kSends ? kSends : kReceives);
    const FirstLook look = look_at_credits(common, kDispatch);
    const int buffer = static_cast<int>(epoch % kNumBuffers);
    __shared__ uint8_t masked[kMaxRanks];
    __shared__ int refused;
    if (thread_in_block() == 0) refused = 0;
    give_credits(common);
    bool ok = halves & kSends ? wait_for_credits(common, kDispatch, epoch, look, masked) : read_masks(common, masked);
    if (ok) {
        // The blocks that have time send the ids: where some blocks only receive, these.
        if (routing.count) {
            int* const sent_idx = receiving.count || halves == kSends ? arrivals.sent_idx : nullptr;  // written once
            send_routes(args, sent_idx, topk_idx, topk_weights, expert, routing, epoch, buffer, masked, &refused);
        }
        if (sending.count) {
            send_rows<kFp8>(args, x, topk_idx, first_expert, piece, sending, epoch, buffer, masked);
        }
        if (receiving.count) ok = receive_rows<kFp8>(args, arrivals, receiving, epoch, buffer, masked);
        if (halves == kSends) __syncthreads();
        if (receiving.count || halves == kSends) ok = ok && !refused;
    }
    if (ok) {
        if (thread_in_block() == 0) complete_epoch(common, kDispatch, halves);
    } else {
        give_up(common, [&](const Fillers& fillers) {
            if (halves & kReceives) spoil_arrivals<kFp8>(common, arrivals, fillers);
        });
    }
}

template <bool kFp8, bool kWhole, typename Index>
__global__ void __launch_bounds__(896, 1)
    dispatch(DispatchArgs args, Arrivals arrivals, const int4* x, const Index* topk_idx, const float* topk_weights) {
    run_dispatch<kFp8, kWhole>(args, arrivals, x, topk_idx, topk_weights);
}

__global__ void finish(Args args) { final_barrier(args); }

}  // namespace ep::low_latency

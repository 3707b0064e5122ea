// Low-latency combine: each rank sums its own experts' results for each token, and sends ONE row back.
//
// The token's owner has the weights, so it first sends them, in packets, to the ranks of the experts. There a block
// takes a row: its threads load the experts' results, wait for the weights meanwhile, add up in float32 in the order of
// k, round once to bfloat16, store to slot (this rank, token) at the owner, and signal the row. The owner, in the same
// blocks, waits for a token's rows and adds them in float32 in ascending order of ranks, rounded once. So bits do not
// depend on timing; the oracle is ep_lib.reference.low_latency_combine.
//
// DeepEP's low-latency combine sends a row for each expert, and the owner weighs and adds: one rounding less, and with
// 8 experts on 4 ranks 2.2 times the bytes.
#include <moe/common/sums.cuh>
#include <moe/low_latency/common.cuh>

namespace ep::low_latency {

struct CombineArgs {
    Args common;
    int4* slots;            // symmetric [kNumBuffers, ranks, max_tokens, row_vectors]   partial sums by rank and token
    uint64_t* row_flags;    // symmetric [kNumBuffers, ranks, max_tokens]
    TaggedWord* weights;    // symmetric [kNumBuffers, ranks, max_tokens * weight_words(top_k)]   of each owner's tokens
    const int* recv_index;  // the dispatch's Arrivals::recv_index
    const int* token_counts;     // likewise
    const int* sent_idx;         // likewise
    const float* known_weights;  // [ranks, max_tokens, top_k] from the dispatch; null: the combine sends weights
};

constexpr int kRowsInFlight = 3;     // experts' rows that a thread loads together
constexpr int kRanksInFlight = 4;    // ranks' rows that a thread loads together
constexpr int kVectorsInFlight = 2;  // vectors of each of these rows

// Lane k: a token's k-th choice in the dispatch, and its place among the choices given to the combine, which may be in
// another order.
struct SentChoice {
    int expert;    // the k-th choice of the dispatch
    int given_at;  // its place in the combine; -1: not there
    bool foreign;  // the k-th choice of the combine is not in the dispatch
};

template <typename Index>
EP_DEVICE SentChoice find_choices(const CombineArgs& args, const Index* topk_idx, int token) {
    const Args& common = args.common;
    const int lane = lane_id(), given = load_choice(common, topk_idx, token);
    int expert = -1;
    if (token < common.num_tokens && lane < common.top_k) {
        expert = args.sent_idx[static_cast<int64_t>(token) * common.top_k + lane];
    }
    SentChoice choice = {expert, lane, false};
    if (__all_sync(kFullWarp, given == expert)) return choice;  // as nearly always
    // If an expert is named twice, first and second keep their order.
    const unsigned before = (1u << lane) - 1;
    const int sent_key = expert * kWarpSize + __popc(__match_any_sync(kFullWarp, expert) & before);
    const int given_key = given * kWarpSize + __popc(__match_any_sync(kFullWarp, given) & before);
    const bool is_choice = lane < common.top_k;
    if (is_choice) choice.given_at = -1;
#pragma unroll 1
    for (int j = 0; j < common.top_k; ++j) {
        const int key = __shfl_sync(kFullWarp, given_key, j);
        const unsigned found = __ballot_sync(kFullWarp, is_choice && sent_key == key);
        if (found >> lane & 1) choice.given_at = j;
        if (lane == j) choice.foreign = found == 0;
    }
    return choice;
}

// A block sends the weights of its tokens, one warp per token, to the ranks whose experts they are for.
template <typename Index>
EP_DEVICE void send_weights(const CombineArgs& args, const Index* topk_idx, const float* topk_weights, Share share,
                            uint64_t epoch, int buffer, const uint8_t* masked) {
    const Args& common = args.common;
    const int step = share.count * warps_in_block();
#pragma unroll 1
    for (int token = share.index + warp_id() * share.count; token < common.num_tokens; token += step) {
        const SentChoice choice = find_choices(args, topk_idx, token);
        const float given = load_weight(common, topk_weights, token);
        const float weight = __shfl_sync(kFullWarp, given, max(choice.given_at, 0));
        send_weights_of(common, args.weights, token, choice.expert, choice.given_at < 0 ? __int_as_float(-1) : weight,
                        epoch, buffer, masked);  // NaN for a choice without a weight; receive_sums refuses the token
    }
}

// The places of one token's rows, and their weights, packed from lane 0 on.
struct Choices {
    int count;
    int row;       // of lane j: recv_index of the j-th choice here
    int k;         // of lane j: which of the top-k it is
    float weight;  // of lane j
};

// Lane k: recv_index of the k-th choice, and its weight where it is known. Undefined for a token that does not exist.
struct Choice {
    int row;
    float weight;
};
EP_DEVICE Choice load_choice_here(const CombineArgs& args, int2 row) {
    const Args& common = args.common;
    if (lane_id() >= common.top_k || row.y >= common.max_tokens) return {-1, 0.0f};
    const int64_t i = (static_cast<int64_t>(row.x) * common.max_tokens + row.y) * common.top_k + lane_id();
    return {args.recv_index[i], args.known_weights ? args.known_weights[i] : 0.0f};
}

EP_DEVICE Choices pack_choices(Choice choice) {
    const unsigned here = __ballot_sync(kFullWarp, choice.row >= 0);
    unsigned rest = here;
    for (int j = 0; j < lane_id() && rest; ++j) rest &= rest - 1;
    const int k = rest ? __ffs(rest) - 1 : 0;  // the lane-th set bit
    return {__popc(here), __shfl_sync(kFullWarp, choice.row, k), k, __shfl_sync(kFullWarp, choice.weight, k)};
}

// A warp waits for the weights of a token's choices.
EP_DEVICE WaitOutcome wait_weights(const CombineArgs& args, int buffer, int source, int token, uint64_t epoch,
                                   Choices* choices) {
    int outcome = kArrived;
    if (lane_id() < choices->count) {
        uint64_t packed = 0;
        outcome = wait_packet_or_mask(
            args.common, weights_of(args.common, args.weights, buffer, source, token) + choices->k / kWeightsPerWord,
            epoch, &packed, {kPhaseCombine, source, token});
        choices->weight = weight_in(packed, choices->k);
    }
    return static_cast<WaitOutcome>(__reduce_max_sync(kFullWarp, outcome));
}

// A thread's vectors of a row: i, i + threads_in_block(), ... `kWritten`: peers write the row during this kernel.
template <bool kWritten>
EP_DEVICE void load_vectors(int4 (&v)[kVectorsInFlight], const int4* rows, int64_t row, int i, int row_vectors) {
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u, i += threads_in_block()) {
        const int4* const vector = rows + row * row_vectors + i;
        if (i < row_vectors) v[u] = kWritten ? ld_na_v4(vector) : ld_nc_v4(vector);
    }
}

EP_DEVICE void add_vectors(Sums<__nv_bfloat16> (&sums)[kVectorsInFlight], const int4 (&v)[kVectorsInFlight],
                           float weight) {
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) sums[u].add(v[u], weight);
}

EP_DEVICE void store_sums(int4* row, const Sums<__nv_bfloat16> (&sums)[kVectorsInFlight], int i, int row_vectors) {
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u, i += threads_in_block()) {
        if (i < row_vectors) st_na_v4(row + i, sums[u].rounded());
    }
}

// The block adds up one token's rows and stores the sum at the owner. The same outcome in the threads of a warp.
EP_DEVICE WaitOutcome send_sum(const CombineArgs& args, const int4* rows, int source, int token, int64_t slot,
                               uint64_t epoch, int buffer, Choices* choices) {
    const int row_vectors = args.common.row_vectors;
    int4* const target = peer_ptr(args.slots + slot * row_vectors, source);
    bool weighted = args.known_weights != nullptr;
#pragma unroll 1
    for (int base = 0; base < row_vectors; base += kVectorsInFlight * threads_in_block()) {
        const int i = base + thread_in_block();
        Sums<__nv_bfloat16> sums[kVectorsInFlight];
#pragma unroll 1
        for (int first = 0; first < choices->count; first += kRowsInFlight) {
            int4 v[kRowsInFlight][kVectorsInFlight];
#pragma unroll
            for (int j = 0; j < kRowsInFlight; ++j) {
                const int row = __shfl_sync(kFullWarp, choices->row, first + j);
                if (first + j < choices->count) load_vectors<false>(v[j], rows, row, i, row_vectors);
            }
            if (!weighted) {  // the rows are on their way from memory
                const WaitOutcome outcome = wait_weights(args, buffer, source, token, epoch, choices);
                if (outcome != kArrived) return outcome;
                weighted = true;
            }
#pragma unroll
            for (int j = 0; j < kRowsInFlight; ++j) {
                const float weight = __shfl_sync(kFullWarp, choices->weight, first + j);
                if (first + j < choices->count) add_vectors(sums, v[j], weight);
            }
        }
        store_sums(target, sums, i, row_vectors);
    }
    return kArrived;
}

// Row i of the rows that a rank sends, as (source, token): to all other ranks in turn, so that all links are busy; its
// own rows, which need no link, at the end. `most`: the largest number of tokens of a source.
EP_DEVICE int2 nth_row(int i, int most) {
    const int others = num_ranks() - 1;
    if (i >= most * others) return make_int2(rank(), i - most * others);
    return make_int2((rank() + 1 + i % others) % num_ranks(), i / others);
}

// The largest number of tokens of a source.
EP_DEVICE int most_tokens(const int* token_counts) {
    int most = 0;
    for (int base = 0; base < num_ranks(); base += kWarpSize) {
        if (base + lane_id() < num_ranks()) most = max(most, token_counts[base + lane_id()]);
    }
    return __reduce_max_sync(kFullWarp, most);
}

// The block sends its rows; `choice` is of the first one. False after a fault.
EP_DEVICE bool send_sums(const CombineArgs& args, const int4* rows, int most, Choice choice, Share share,
                         uint64_t epoch, int buffer, const uint8_t* masked) {
    const Args& common = args.common;
    const int ranks = num_ranks();
    int2 next = nth_row(share.index, most);
    int signalling = 0;
#pragma unroll 1
    for (int i = share.index; i < most * ranks; i += share.count) {
        const int source = next.x, token = next.y;
        Choices choices = pack_choices(choice);
        next = nth_row(i + share.count, most);
        choice = load_choice_here(args, next);
        if (masked[source] || token >= args.token_counts[source] || choices.count == 0) continue;
        const int64_t slot = static_cast<int64_t>(buffer * ranks + rank()) * common.max_tokens + token;
        const WaitOutcome outcome = send_sum(args, rows, source, token, slot, epoch, buffer, &choices);
        if (__syncthreads_or(outcome != kArrived)) {  // data, then signal
            if (__syncthreads_or(outcome == kGaveUp)) return false;
            continue;
        }
        if (warp_id() == signalling && lane_id() == 0) {
            st_release_sys_u64(peer_ptr(args.row_flags + slot, source), epoch);
        }
        signalling = (signalling + 1) % warps_in_block();
    }
    return true;
}

// A warp waits for the sums of one token; returns the ranks whose sums are there. `gave_up` becomes true in all lanes
// after a fault, or if it was true in one of them.
EP_DEVICE RankSet wait_sums(const CombineArgs& args, int token, const RankSet& from, uint64_t epoch, int buffer,
                            const uint8_t* masked, bool* gave_up) {
    RankSet here = {0, 0};
    int failed = *gave_up;
#pragma unroll 1
    for (int base = 0; base < num_ranks(); base += kWarpSize) {
        const int r = base + lane_id();
        WaitOutcome outcome = kMasked;
        if (r < num_ranks() && from.has(r) && !masked[r]) {
            const int64_t slot = static_cast<int64_t>(buffer * num_ranks() + r) * args.common.max_tokens + token;
            outcome = wait_flag_or_mask(args.common, args.row_flags + slot, epoch, {kPhaseCombine, r, token});
        }
        failed |= outcome == kGaveUp;
        const unsigned arrived = __ballot_sync(kFullWarp, outcome == kArrived);
        (base == 0 ? here.low : here.high) = arrived;
    }
    *gave_up = __any_sync(kFullWarp, failed) != 0;
    __syncwarp();  // all lanes may read what one lane acquired
    return here;
}

// The block adds up the ranks' sums of one of its own tokens.
EP_DEVICE void add_sums(const CombineArgs& args, int4* out, int token, const RankSet& here, int buffer) {
    const int row_vectors = args.common.row_vectors, ranks = num_ranks();
    const int64_t first_row = static_cast<int64_t>(buffer * ranks) * args.common.max_tokens + token;
#pragma unroll 1
    for (int i = thread_in_block(); i < row_vectors; i += kVectorsInFlight * threads_in_block()) {
        Sums<__nv_bfloat16> sums[kVectorsInFlight];
#pragma unroll 1
        for (int first = 0; first < ranks; first += kRanksInFlight) {
            int4 v[kRanksInFlight][kVectorsInFlight];
#pragma unroll
            for (int j = 0; j < kRanksInFlight; ++j) {
                const int r = first + j;
                const int64_t row = first_row + static_cast<int64_t>(r) * args.common.max_tokens;
                if (r < ranks && here.has(r)) load_vectors<true>(v[j], args.slots, row, i, row_vectors);
            }
#pragma unroll
            for (int j = 0; j < kRanksInFlight; ++j) {
                if (first + j < ranks && here.has(first + j)) add_vectors(sums, v[j], 1.0f);
            }
        }
        store_sums(out + static_cast<int64_t>(token) * row_vectors, sums, i, row_vectors);
    }
}

template <typename Index>
EP_DEVICE bool receive_sums(const CombineArgs& args, int4* out, const Index* topk_idx, Share share, uint64_t epoch,
                            int buffer, const uint8_t* masked) {
    const Args& common = args.common;
#pragma unroll 1
    for (int token = share.index; token < common.num_tokens; token += share.count) {
        const SentChoice choice = find_choices(args, topk_idx, token);
        bool gave_up = choice.foreign;
        if (gave_up) {
            const bool exists = load_choice(common, topk_idx, token) != kBadChoice;
            refuse_choice(common, topk_idx, token, kPhaseCombine, exists ? kNotDispatched : kNoExpert);
        }
        const RankSet from = ranks_of(choice.expert, common.experts_per_rank);
        const RankSet here = wait_sums(args, token, from, epoch, buffer, masked, &gave_up);
        if (gave_up) return false;
        add_sums(args, out, token, here, buffer);
    }
    return true;
}

// Any grid whose blocks all run at once, any whole number of warps. kWhole: both halves.
//   out           [num_tokens, row_vectors]   zeros for a token without experts
//   rows          [experts_per_rank, ranks * max_tokens, row_vectors]   bfloat16: what the experts made of the arrivals
//   topk_idx      [num_tokens, top_k]         each token's choices of the dispatch, in any order; all else is a fault
//   topk_weights  [num_tokens, top_k]         beside topk_idx; or null: those that came with the dispatch
template <bool kWhole, typename Index>
EP_DEVICE void run_combine(const CombineArgs& args, int4* out, const int4* rows, const Index* topk_idx,
                           const float* topk_weights) {
    const Args& common = args.common;
    const int halves = kWhole ? kSends | kReceives : common.halves;
    const Share sending = sending_share(common, halves), receiving = receiving_share(common, halves);
    // All first loads are issued together; the first row's address is right if all ranks have as many tokens as this
    // one.
    int2 guess = make_int2(0, 0);
    Choice choice = {-1, 0.0f};
    int most = 0;
    if (sending.count) {
        guess = nth_row(sending.index, common.num_tokens);
        choice = load_choice_here(args, guess);
        most = most_tokens(args.token_counts);
    }
    const uint64_t epoch = epoch_of(common, kCombine, halves & kSends ? kSends : kReceives);
    const FirstLook look = look_at_credits(common, kCombine);
    const int buffer = static_cast<int>(epoch % kNumBuffers);
    __shared__ uint8_t masked[kMaxRanks];
    give_credits(common);
    bool ok = halves & kSends ? wait_for_credits(common, kCombine, epoch, look, masked) : read_masks(common, masked);
    if (ok && halves & kSends) {
        // The blocks that have time send the weights: where some blocks only receive, these.
        const Share idle = receiving.count ? receiving : sending;
        if (!args.known_weights && (receiving.count || halves == kSends)) {
            send_weights(args, topk_idx, topk_weights, idle, epoch, buffer, masked);
        }
        if (sending.count) {
            const int2 first = nth_row(sending.index, most);
            if (first.x != guess.x || first.y != guess.y) choice = load_choice_here(args, first);
            ok = send_sums(args, rows, most, choice, sending, epoch, buffer, masked);
        }
    }
    if (ok && receiving.count) ok = receive_sums(args, out, topk_idx, receiving, epoch, buffer, masked);
    if (__syncthreads_or(!ok)) {
        give_up(common, [&](const Fillers& fillers) {
            const int64_t bytes = static_cast<int64_t>(common.num_tokens) * common.row_vectors * sizeof(int4);
            if (halves & kReceives) fill_with_nan(out, bytes, fillers);
        });
        return;
    }
    if (thread_in_block() == 0) complete_epoch(common, kCombine, halves);
}

template <bool kWhole, typename Index>
__global__ void __launch_bounds__(896, 1)
    combine(CombineArgs args, int4* out, const int4* rows, const Index* topk_idx, const float* topk_weights) {
    run_combine<kWhole>(args, out, rows, topk_idx, topk_weights);
}

}  // namespace ep::low_latency

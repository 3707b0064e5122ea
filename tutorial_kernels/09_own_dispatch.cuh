// A dispatch for small batches in one kernel: the last exercise. 09_own_dispatch.cu has its kernels.
//
//     every token      a packet to every rank: which of its experts want it, bit by bit (0: none)
//     its row          once to every rank that wants it, into the slot (source, token), which needs no question
//     its signal       arrived[slot] becomes the epoch
//     the receiver     waits for each token's packet, for the row if it is wanted, and copies it to its experts
//
// A slot belongs to one token of one rank, so nothing is counted and no rank waits before it sends. Epochs are 1, 2, 3, ...
// Between two of them there is a barrier of the ranks (notebook 08 and <moe/low_latency/common.cuh> do without one).
#pragma once
#include <ep/packet.cuh>
#include <ep/put.cuh>
#include <ep/signal.cuh>

namespace own {

using namespace ep;

// What a rank calls its own copies; up to 64 experts per rank.
struct Dispatch {
    int4* rows;          // symmetric [ranks, max_tokens, row_vectors]: by source and token
    uint64_t* arrived;   // symmetric [ranks, max_tokens]: the epoch whose row lies there, complete
    TaggedWord* routes;  // symmetric [ranks, max_tokens]: packets, which experts here want the token
    int4* out;           // [experts_per_rank, ranks * max_tokens, row_vectors]: what the experts read
    uint64_t* wanted;    // [ranks * max_tokens]: the bits of `routes`, for those who run experts
    uint64_t epoch;
    int num_tokens;  // of this rank
    int max_tokens;  // of any rank
    int row_vectors;
    int top_k;
    int experts_per_rank;
};

// Where a token of `source` lies, in all arrays of slots, on every rank.
EP_DEVICE int64_t slot_of(const Dispatch& my, int source, int token) {
    return static_cast<int64_t>(source) * my.max_tokens + token;
}

// Bit e: expert e of rank r is among the `count` choices of a token. A choice of -1 is none. One thread calls.
EP_DEVICE uint64_t wanted_on(const Dispatch& my, const int* choices, int count, int r) {
    uint64_t bits = 0;
    for (int k = 0; k < count; ++k) {
        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k] % my.experts_per_rank;
    }
    return bits;
}

// A warp tells every rank, this one too, which of its experts want a token. A token that does not exist has 0 choices.
EP_DEVICE void tell_warp(const Dispatch& my, const int* choices, int count, int token) {
    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
    }
}

// A warp sends a token's row, once, to every rank that wants it, this one too, and then its signals.
EP_DEVICE void send_row_warp(const Dispatch& my, const int4* row, const int* choices, int count, int token) {
    const int64_t slot = slot_of(my, rank(), token);
    for (int n = 0; n < num_ranks(); ++n) {
        const int r = (rank() + 1 + n) % num_ranks();  // not all to rank 0 first
        if (wanted_on(my, choices, count, r) == 0) continue;
        put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), r);
    }
    __syncwarp();  // a lane's release covers the other lanes' stores only if they come before it
    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
        if (wanted_on(my, choices, count, r) != 0) signal_set(my.arrived + slot, my.epoch, r);
    }
}

// A warp waits until it is known which experts here want a token of `source`, and for its row if any does, and copies the
// row to row `slot` of each of them in `out`. `*bits`, the same in all lanes: which experts. False after a wait that ran
// into its limit.
EP_DEVICE bool receive_warp(const Dispatch& my, int source, int token, uint64_t* bits) {
    const int64_t slot = slot_of(my, source, token);
    uint64_t found = 0;
    int ok = 1;
    if (lane_id() == 0) ok = wait_packet(my.routes + slot, my.epoch, &found, {kPhaseLayout, source, token});
    if (!__shfl_sync(kFullWarp, ok, 0)) return false;
    *bits = __shfl_sync(kFullWarp, found, 0);
    if (*bits == 0) return true;
    if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return false;
    for (uint64_t left = *bits; left != 0; left &= left - 1) {
        const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
    }
    return true;
}

// The whole grid; all of its blocks run at once, and may have two or three dimensions. x [num_tokens, row_vectors],
// topk_idx [num_tokens, top_k].
EP_DEVICE void dispatch(const Dispatch& my, const int4* x, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    const auto choices_of = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
    for (int token = first_warp; token < my.max_tokens; token += all_warps) {  // what all wait for goes first
        const bool exists = token < my.num_tokens;
        tell_warp(my, exists ? choices_of(token) : nullptr, exists ? my.top_k : 0, token);
    }
    for (int token = first_warp; token < my.num_tokens; token += all_warps) {
        const int4* const row = x + static_cast<int64_t>(token) * my.row_vectors;
        send_row_warp(my, row, choices_of(token), my.top_k, token);
    }
    for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
        uint64_t bits = 0;
        if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
        if (lane_id() == 0) my.wanted[i] = bits;
    }
}

}  // namespace own

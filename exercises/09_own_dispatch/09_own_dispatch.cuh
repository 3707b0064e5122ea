// Exercise 09_own_dispatch, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (2 points): which experts of a rank want this token?
    // Expert e lives on rank e / experts_per_rank, where it has the number e % experts_per_rank. Set that bit
    // for each choice that lives on rank r. A choice of -1 lives nowhere; two equal choices are one bit.
    assert(!"Task 1 is still to do: which experts of a rank want this token?");
    return 0;
    // end of TASK 1
}

// A warp tells every rank, this one too, which of its experts want a token. A token that does not exist has 0 choices.
EP_DEVICE void tell_warp(const Dispatch& my, const int* choices, int count, int token) {
    // TASK 2 (2 points): tell every rank
    // Lane r is for rank r, lane r + 32 for rank r + 32. Each sends one packet: send_packet(packet, data, tag,
    // peer) of <ep/packet.cuh>. Which packet is this token's, and what is a tag that its place has not held
    // before? The receiver waits for the packet of every token, so a rank that does not want this one must hear
    // that, too.
    assert(!"Task 2 is still to do: tell every rank");
    // end of TASK 2
}

// A warp sends a token's row, once, to every rank that wants it, this one too, and then its signals.
EP_DEVICE void send_row_warp(const Dispatch& my, const int4* row, const int* choices, int count, int token) {
    // TASK 3 (3 points): send the row once to every rank that wants it
    // For each rank that wants the token (wanted_on is not 0): put_warp the row into slot (this rank, token),
    // once, however many of its experts want it. Then its signal: arrived of the same slot becomes the epoch, by
    // signal_set of <ep/signal.cuh>. A release covers what its own lane wrote: what must stand between the rows
    // and the signals? All ranks' signals can be sent at once, a lane each.
    assert(!"Task 3 is still to do: send the row once to every rank that wants it");
    // end of TASK 3
}

// A warp waits until it is known which experts here want a token of `source`, and for its row if any does, and copies the
// row to row `slot` of each of them in `out`. `*bits`, the same in all lanes: which experts. False after a wait that ran
// into its limit.
EP_DEVICE bool receive_warp(const Dispatch& my, int source, int token, uint64_t* bits) {
    // TASK 4 (3 points): wait for a row, and give it to its experts
    // First the packet of slot (source, token): wait_packet, by lane 0, which hands the bits to all (__shfl_sync
    // has 64-bit numbers). If no expert here wants the token, that is all. Else wait until arrived of the slot
    // is the epoch, and copy the row to out, row `slot` of each expert whose bit is set. A shuffle orders no
    // memory: wait_until_ge_warp does more.
    assert(!"Task 4 is still to do: wait for a row, and give it to its experts");
    return false;
    // end of TASK 4
}

// The whole grid; all of its blocks run at once, and may have two or three dimensions. x [num_tokens, row_vectors],
// topk_idx [num_tokens, top_k].
EP_DEVICE void dispatch(const Dispatch& my, const int4* x, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    // TASK 5 (5 points): the whole kernel, in time
    // The warps of the grid share the tokens (first_warp, all_warps), and then the slots of all sources. What
    // should be on its way first, so that no rank waits longer than necessary? Each token and each slot is one
    // warp's, not every warp's. Tokens from num_tokens to max_tokens do not exist: tell_warp says so to the
    // ranks, and there is no row. Write `wanted` of every slot: receive_warp gives the bits.
    assert(!"Task 5 is still to do: the whole kernel, in time");
    // end of TASK 5
}

}  // namespace own

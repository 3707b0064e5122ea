// Which row is mine? The prefix sums with which every token finds its one exact place, without a question to its rank.
//
//     place among my rows     how many of my earlier tokens go there too: lanes below, warps below, rounds before
//     first row of mine       how many rows the ranks before me send there
//     row                     first row + place, and the address of that in the other rank's memory
//
// <moe/common/layout.cuh> and <moe/direct/notify_dispatch.cu> count with these, <moe/common/notify.cuh> adds up over the
// ranks. Exercise 06_slots lets you write them yourself.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>

namespace ep {

constexpr int kMaxWarps = 32;  // of a block

// All 32 lanes of a warp call, whatever other warps do. Returns how many of the lanes BELOW this one said yes; *total: how
// many of all 32 did.
EP_DEVICE int votes_below(bool yes, int* total) {
    // EXERCISE-BEGIN 1
    const unsigned votes = __ballot_sync(kFullWarp, yes);
    *total = __popc(votes);
    return __popc(votes & ((1u << lane_id()) - 1));
    // EXERCISE-END 1
}

// All threads of a block of whole warps call, which may have two or three dimensions (warps_in_block() knows); the lanes
// of a warp pass the same `value`. Returns the sum of `value` over the warps below this one; *total: over all.
// `warp_totals` [kMaxWarps] is shared memory, and serves call after call.
EP_DEVICE int sum_of_lower_warps(int value, int* warp_totals, int* total) {
    // EXERCISE-BEGIN 2
    const int lane = lane_id();
    __syncthreads();  // warp_totals of an earlier call have been read
    if (lane == 0) warp_totals[warp_id()] = value;
    __syncthreads();
    const int mine = lane < warps_in_block() ? warp_totals[lane] : 0;  // no more warps than lanes
    *total = __reduce_add_sync(kFullWarp, mine);
    return __reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0);
    // EXERCISE-END 2
}

// How many rows the sources before `source` send: its own first row. counts[s * stride] are the rows of source s. One
// thread calls.
EP_DEVICE int rows_before(const int* counts, int stride, int source) {
    // EXERCISE-BEGIN 3
    int rows = 0;
    for (int s = 0; s < source; ++s) rows += counts[s * stride];
    return rows;
    // EXERCISE-END 3
}

// Row `index` of rank `to`, as this rank addresses it. `rows` is this rank's own copy of the symmetric array, and a row
// has `row_vectors` vectors of 16 bytes. One thread calls.
EP_DEVICE int4* row_at(int4* rows, int to, int index, int row_vectors) {
    // EXERCISE-BEGIN 4
    // More vectors than an int can count: 32 ranks with 65536 tokens of 16 KiB have 2^31.
    return peer_ptr(rows, to) + static_cast<int64_t>(index) * row_vectors;
    // EXERCISE-END 4
}

}  // namespace ep

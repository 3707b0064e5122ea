// Exercise 06_slots, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (3 points): the lanes below me
    // __ballot_sync(kFullWarp, yes) gives every lane the answers of all 32 as the bits of one number: lane l is
    // bit l. __popc counts bits. Which number has exactly the bits below lane_id()? (With 1 << 31 as a signed
    // int it goes wrong for lane 31: use 1u.)
    assert(!"Task 1 is still to do: the lanes below me");
    *total = 0;
    return 0;
    // end of TASK 1
}

// All threads of a block of whole warps call, which may have two or three dimensions (warps_in_block() knows); the lanes
// of a warp pass the same `value`. Returns the sum of `value` over the warps below this one; *total: over all.
// `warp_totals` [kMaxWarps] is shared memory, and serves call after call.
EP_DEVICE int sum_of_lower_warps(int value, int* warp_totals, int* total) {
    // TASK 2 (4 points): the warps below mine
    // One lane of each warp writes the warp's value to warp_totals[warp_id()], a barrier, and then everybody
    // reads warps_in_block() of them (blockDim.x / 32 is right only in blocks of one dimension): each warp can
    // add up with __reduce_add_sync(kFullWarp, ...), its lane w looking at warp w, or each thread with a loop.
    // The same shared memory is used again by the next call. Who may still be reading it then?
    assert(!"Task 2 is still to do: the warps below mine");
    *total = 0;
    return 0;
    // end of TASK 2
}

// How many rows the sources before `source` send: its own first row. counts[s * stride] are the rows of source s. One
// thread calls.
EP_DEVICE int rows_before(const int* counts, int stride, int source) {
    // TASK 3 (2 points): the ranks before me
    // An exclusive prefix sum: the sources 0, 1, ... before `source`, and not `source` itself.
    assert(!"Task 3 is still to do: the ranks before me");
    return 0;
    // end of TASK 3
}

// Row `index` of rank `to`, as this rank addresses it. `rows` is this rank's own copy of the symmetric array, and a row
// has `row_vectors` vectors of 16 bytes. One thread calls.
EP_DEVICE int4* row_at(int4* rows, int to, int index, int row_vectors) {
    // TASK 4 (3 points): the address of a row
    // peer_ptr(rows, to) is the beginning of the other rank's copy; then index * row_vectors vectors further.
    // How large can that product get? 32 ranks with 65536 tokens of 16 KiB have 2^31 vectors, which no int can
    // hold: int64_t first, then multiply.
    assert(!"Task 4 is still to do: the address of a row");
    return rows;
    // end of TASK 4
}

}  // namespace ep

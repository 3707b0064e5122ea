// The destinations of every token: counts and prefix sums of the top-k expert ids, computed on the device.
//
// A token goes once to every rank with at least one of its experts. Expert e is on rank e / experts_per_rank; -1 means
// "not routed". Each rank packs its rows for a destination densely, in token order:
//
//     send_index[token, rank] = how many earlier tokens of mine go to that rank, or -1 if this one does not
//
// Once all ranks know each other's counts (<moe/common/notify.cuh>), send_index + first row of this source is the final
// row in the destination's receive area, and a token can be written directly to it. DeepEP's `get_dispatch_layout`
// counts in the same way; the oracle is `ep_lib.reference.layout`.
#pragma once
#include <ep/slots.cuh>

namespace ep {

struct LayoutArgs {
    int num_tokens;
    int top_k;
    int experts_per_rank;
};

// A token's place: how many tokens before it go there too, `*before` of them in earlier rounds; -1 if it does not go there.
// An exclusive prefix sum, within a warp by a vote, across warps by their totals. All threads of a block call.
EP_DEVICE int place_in_block(bool goes, int* warp_totals, int* before) {
    int of_warp, of_block;
    const int lanes_below = votes_below(goes, &of_warp);
    const int warps_below = sum_of_lower_warps(of_warp, warp_totals, &of_block);
    const int place = *before + warps_below + lanes_below;
    *before += of_block;
    return goes ? place : -1;
}

// A block computes the layout for one destination rank, then takes the next; any grid, any whole number of warps.
// Dynamic shared memory: one int per warp (kMaxWarps of them), and one for each expert of a rank.
//   topk_idx       [num_tokens, top_k]   global expert ids or -1
//   send_index     [num_tokens, ranks]   out
//   rank_counts    [ranks]               out: tokens that go to each rank
//   expert_counts  [ranks * experts_per_rank]   out: choices of each expert
// The destinations may also be groups of ranks, with as many experts each (args.experts_per_rank).
EP_DEVICE void get_dispatch_layout(const LayoutArgs& args, const int* topk_idx, int* send_index, int* rank_counts,
                                   int* expert_counts, int destinations = num_ranks()) {
    extern __shared__ int layout_shared[];
    int* const warp_totals = layout_shared;
    int* const choices = layout_shared + kMaxWarps;  // of each expert of the destination
    const int thread = thread_in_block(), num_threads = threads_in_block();

    for (int destination = blockIdx.x; destination < destinations; destination += gridDim.x) {
        const int first_expert = destination * args.experts_per_rank;
        for (int e = thread; e < args.experts_per_rank; e += num_threads) choices[e] = 0;
        __syncthreads();

        int before = 0;  // tokens for this destination in earlier rounds
        for (int round = 0; round < args.num_tokens; round += num_threads) {
            const int token = round + thread;
            bool goes = false;
            if (token < args.num_tokens) {
                for (int k = 0; k < args.top_k; ++k) {
                    const int local = topk_idx[static_cast<int64_t>(token) * args.top_k + k] - first_expert;
                    if (local < 0 || local >= args.experts_per_rank) continue;
                    goes = true;
                    atomicAdd(&choices[local], 1);
                }
            }
            const int place = place_in_block(goes, warp_totals, &before);
            if (token < args.num_tokens) send_index[static_cast<int64_t>(token) * destinations + destination] = place;
        }
        if (thread == 0) rank_counts[destination] = before;
        for (int e = thread; e < args.experts_per_rank; e += num_threads) expert_counts[first_expert + e] = choices[e];
        __syncthreads();  // choices are cleared again
    }
}

// One row that a token has on another rank (or on its own).
struct RowPtr {
    int4* row;  // as this rank addresses it
    int rank;
    int index;  // the row's index in that rank's receive area
    float weight;
    int area;  // the number of the receive area, if that rank has several (<moe/direct/dispatch_bulk.cu>)
};

// A warp lists the rows of one token, in ascending order of ranks, and returns their number. `row_ptrs` is the warp's
// own part of shared memory, with room for one RowPtr per rank.
//   send_index  [num_tokens, ranks]   from `get_dispatch_layout`
//   first_row   [ranks]               the first of this source's rows on each rank, from `notify`
//   rows        this rank's receive area; row_vectors: its row length in 16-byte vectors
EP_DEVICE int find_row_ptrs(RowPtr* row_ptrs, int token, const int* send_index, const int* first_row, int4* rows,
                            int row_vectors) {
    __syncwarp();  // all lanes have read the previous token's pointers
    int found = 0;
    for (int base = 0; base < num_ranks(); base += kWarpSize) {
        const int rank = base + lane_id();
        const int s = rank < num_ranks() ? send_index[static_cast<int64_t>(token) * num_ranks() + rank] : -1;
        int rows_here;
        const int below = votes_below(s >= 0, &rows_here);
        if (s >= 0) {
            const int index = first_row[rank] + s;
            row_ptrs[found + below] = {row_at(rows, rank, index, row_vectors), rank, index, 1.0f};
        }
        found += rows_here;
    }
    __syncwarp();
    return found;
}

}  // namespace ep

// Combine: what the experts made of a token comes home and is added up. A ladder with one idea per rung.
//
//     experts' rank                                          owner of the token
//     y, a row for each row that dispatch brought      --->  out[token] = sum over its ranks of weight * row
//
// Dispatch left behind where every row is: send_index (which of my rows on that rank) and first_row (where mine begin).
//
// Rung  Kernels                          Idea
// 0     combine_atomics                  add on arrival: float atomics straight into the owner's sum
// 1     stage, combine_thread            fetch a token's rows and add them in a fixed order
// 2     stage, combine_warp              a warp per token
// 3     stage, combine                   rows of four ranks under way together
// 4     experts_and_combine              no waiting for the last expert: rows come home group by group
//
// Every rung's time includes `experts`, who do the same work each time; in rung 4 they do it while others add up.
// Sums are float32, in ascending order of ranks, rounded once, at the end: <moe/common/sums.cuh>.
//
// 07_combine_broken.cu has the classic mistakes. ep_lib.Buffer's combine is rung 4's idea with TMA:
// <moe/direct/combine_push.cu>.
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>
#include <moe/common/sums.cuh>

#include "07_combine.cuh"

using namespace ep;

// ---- The experts ----------------------------------------------------------------------------------------------------
// do_group of 07_combine.cuh does the work of one group of rows, by one warp.
// Any grid. All groups, into y [rows, row_vectors], this rank's own memory.
extern "C" __global__ void experts(Experts experts, int4* y) {
    const int items = num_ranks() * num_groups(experts.max_tokens, kGroupRows);
    for (int item = warp_in_grid(); item < items; item += warps_in_grid()) {
        const int source = item % num_ranks(), group = item / num_ranks();
        int before = 0;
        for (int s = 0; s < source; ++s) before += experts.received[s];
        do_group(experts, source, group, row_of(y, before + group * kGroupRows, experts.row_vectors));
    }
}

// ---- Rung 0: add on arrival -----------------------------------------------------------------------------------------
// The rank that has the row adds it into the owner's sum, number by number, as an atomic: in the order in which rows
// come. No rank waits, and no room for rows is needed. But 4 bytes per atomic are a poor load for a link.
//   sums          symmetric [max_tokens, hidden], 0 at the start: the owner's
//   recv_source   [num_rows]          whose token a row is
//   recv_weights  [num_rows, top_k]   its weights here: 0 for experts that are elsewhere
extern "C" __global__ void combine_atomics(Signals signals, uint32_t* finished_blocks, float* sums, const float* y,
                                           const int2* recv_source, const float* recv_weights, int num_rows, int hidden,
                                           int top_k) {
    for (int row = warp_in_grid(); row < num_rows; row += warps_in_grid()) {
        float weight = 0.0f;
        for (int k = 0; k < top_k; ++k) weight = __fadd_rn(weight, recv_weights[row * top_k + k]);
        const int2 owner = recv_source[row];
        float* const sum = peer_ptr(sums, owner.x) + static_cast<int64_t>(owner.y) * hidden;
        for (int i = lane_id(); i < hidden; i += kWarpSize) {
            atomicAdd_system(sum + i, __fmul_rn(weight, y[static_cast<int64_t>(row) * hidden + i]));
        }
    }
    if (!is_last_block(finished_blocks)) return;
    signal_all(signals, kSignalPulled);
    wait_for_all(signals, kSignalPulled, signals.epoch, kPhaseCombine);
}

// ---- Rung 1: a fixed order ------------------------------------------------------------------------------------------
// First the experts' rows go where others can read them; a signal says so. Then each token's owner fetches its rows and
// adds them in ascending order of ranks. Rows may be ready in any order: they are not added when they are ready.
struct StageArgs {
    Signals signals;
    int4* rows;  // symmetric: the receive area, which this rank has emptied
    uint32_t* finished_blocks;
    uint64_t tag;             // names the handle
    uint64_t previous_epoch;  // the last combine: all must have read their rows of it
    int64_t num_vectors;      // to copy: rows * vectors per row
};

// Any grid. y [rows, row_vectors]; differs [ranks] as in compare_tags.
extern "C" __global__ void stage(StageArgs args, const int4* y, int* differs) {
    if (block_has_fault()) return;
    if (!wait_for_all(args.signals, kSignalPulled, args.previous_epoch, kPhaseCombine)) return;

    int4* const rows = args.rows;
    const int64_t num_vectors = args.num_vectors, stride = static_cast<int64_t>(gridDim.x) * threads_in_block();
    for (int64_t i = blockIdx.x * threads_in_block() + thread_in_block(); i < num_vectors; i += stride) {
        st_na_v4(rows + i, ld_nc_v4(y + i));
    }
    if (!is_last_block(args.finished_blocks)) return;
    signal_all(args.signals, kSignalStaged, args.tag);
    if (wait_for_all(args.signals, kSignalStaged, args.signals.epoch, kPhaseCombine)) {
        compare_tags(args.signals, kSignalStaged, args.tag, differs);
    }
}

struct CombineArgs {
    Signals signals;
    int4* rows;  // symmetric: what `stage` wrote
    uint32_t* finished_blocks;
    int num_tokens;
    int row_vectors;
    int top_k;
    int experts_per_rank;
};

// One thread per token. Any grid.
//   out   [num_tokens, row_vectors]     sum over a token's ranks of weight * row; zeros for a token without a rank
//   topk_weights  [num_tokens, top_k]
extern "C" __global__ void combine_thread(CombineArgs args, int4* out, const int* topk_idx, const float* topk_weights,
                                          const int* send_index, const int* first_row) {
    const int stride = static_cast<int>(gridDim.x) * threads_in_block();
    for (int token = blockIdx.x * threads_in_block() + thread_in_block(); token < args.num_tokens; token += stride) {
        for (int i = 0; i < args.row_vectors; ++i) {
            Sums<float> sums;
            for (int r = 0; r < num_ranks(); ++r) {  // the fixed order
                const int place = send_index[token * num_ranks() + r];
                if (place < 0) continue;
                const float weight = weight_on(args.top_k, args.experts_per_rank, r, token, topk_idx, topk_weights);
                const int4* const row = row_of(peer_ptr(args.rows, r), first_row[r] + place, args.row_vectors);
                sums.add(ld_nc_v4(row + i), weight);
            }
            st_na_v4(row_of(out, token, args.row_vectors) + i, sums.rounded());
        }
    }
    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

// ---- Rung 2: a warp per token ---------------------------------------------------------------------------------------
// 32 lanes read 512 neighbouring bytes of a row. Where the rows are, and their weights, is found out once per token and
// not once per vector: row_ptrs, in shared memory.
// Dynamic shared memory, here and in rung 3: one RowPtr per warp and rank.
EP_DEVICE int find_rows_and_weights(const CombineArgs& args, RowPtr* row_ptrs, int token, const int* topk_idx,
                                    const float* topk_weights, const int* send_index, const int* first_row) {
    const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, args.row_vectors);
    if (topk_weights) {
        for (int p = lane_id(); p < found; p += kWarpSize) {
            row_ptrs[p].weight =
                weight_on(args.top_k, args.experts_per_rank, row_ptrs[p].rank, token, topk_idx, topk_weights);
        }
        __syncwarp();
    }
    return found;
}

extern "C" __global__ void combine_warp(CombineArgs args, int4* out, const int* topk_idx, const float* topk_weights,
                                        const int* send_index, const int* first_row) {
    extern __shared__ RowPtr combine_row_ptrs[];
    RowPtr* const row_ptrs = combine_row_ptrs + warp_id() * num_ranks();
    for (int token = warp_in_grid(); token < args.num_tokens; token += warps_in_grid()) {
        const int found = find_rows_and_weights(args, row_ptrs, token, topk_idx, topk_weights, send_index, first_row);
        for (int i = lane_id(); i < args.row_vectors; i += kWarpSize) {
            Sums<float> sums;
            for (int p = 0; p < found; ++p) sums.add(ld_nc_v4(row_ptrs[p].row + i), row_ptrs[p].weight);
            st_na_v4(row_of(out, token, args.row_vectors) + i, sums.rounded());
        }
    }
    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

// ---- Rung 3: many loads under way -----------------------------------------------------------------------------------
// A load from a peer takes microseconds. Rung 2's lane asks for one vector, waits, adds it, and asks for the next. Here
// a lane asks for 4 vectors of 4 ranks, 256 bytes, and then adds. The order of the additions has not changed.
// Any grid, any whole number of warps.
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
template <typename T>
__global__ void combine(CombineArgs args, int4* out, const int* topk_idx, const float* topk_weights,
                        const int* send_index, const int* first_row) {
    extern __shared__ RowPtr combine_row_ptrs[];
    RowPtr* const row_ptrs = combine_row_ptrs + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int row_vectors = args.row_vectors;
    for (int token = warp_in_grid(); token < args.num_tokens; token += warps_in_grid()) {
        const int found = find_rows_and_weights(args, row_ptrs, token, topk_idx, topk_weights, send_index, first_row);
        int4* const target = row_of(out, token, row_vectors);
        for (int first = lane_id(); first < row_vectors; first += kCombineVectors * kWarpSize) {
            Sums<T> sums[kCombineVectors];
            for (int p = 0; p < found; p += kCombineRanks) {
                int4 vectors[kCombineRanks][kCombineVectors];
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) {
                        const int i = first + u * kWarpSize;
                        if (p + q < found && i < row_vectors) vectors[q][u] = ld_nc_v4(row_ptrs[p + q].row + i);
                    }
                }
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
                    if (p + q >= found) break;
                    const float weight = row_ptrs[p + q].weight;
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) sums[u].add(vectors[q][u], weight);
                }
            }
#pragma unroll
            for (int u = 0; u < kCombineVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) st_na_v4(target + i, sums[u].rounded());
            }
        }
    }

    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

// ---- Rung 4: while the experts still work ---------------------------------------------------------------------------
// Until now the first sum began when the last expert on the slowest rank was done, and then the links had to carry
// everything at once. But a token needs its own rows only. So each group of rows is stored straight to its owner as soon
// as its expert has it, and a flag of its own follows: data, then signal. Some blocks are experts, the others add up: a
// warp waits for the groups of its token, and for no others. The order of the additions has not changed.

// The blocks of experts.
EP_DEVICE void send_groups(const Experts& experts, const Overlap& args) {
    const int groups = num_groups(experts.max_tokens, kGroupRows), warps = args.expert_blocks * warps_in_block();
    int4* const mine = row_of(args.returned, rank() * experts.max_tokens, experts.row_vectors);
    for (int item = warp_in_grid(); item < num_ranks() * groups; item += warps) {
        const int group = item / num_ranks();
        const int owner = (rank() + 1 + item) % num_ranks();  // not all ranks to the same one at once
        int4* const rows = row_of(mine, group * kGroupRows, experts.row_vectors);
        if (do_group(experts, owner, group, peer_ptr(rows, owner)) == 0) continue;
        __syncwarp();
        if (lane_id() == 0) signal_group(args.arrived, groups, group, owner, args.epoch);
    }
}

// The first `expert_blocks` blocks are experts, so they run first wherever blocks have to take turns.
extern "C" __global__ void experts_and_combine(Experts experts, Overlap args, int4* out, const int* topk_idx,
                                               const float* topk_weights, const int* send_index) {
    if (static_cast<int>(blockIdx.x) < args.expert_blocks) {
        send_groups(experts, args);
    } else {
        add_up(experts, args, out, topk_idx, topk_weights, send_index);
    }
}

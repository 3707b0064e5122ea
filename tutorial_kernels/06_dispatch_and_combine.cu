// Dispatch and combine, as simply as they can be written: the kernels that notebook 06 reads.
//
//     layout           <moe/common/layout.cuh>: where every token goes, and how many go where
//     exchange_counts  <moe/common/notify.cuh>: all ranks' counts, and from them all final rows
//     dispatch         every token straight into its final rows, on all the ranks that hold its experts
//     enter            instead of layout and counts where those of an earlier dispatch still hold
//     stage            the experts' rows into symmetric memory, where others can read them
//     combine          every token collects what its experts made of it and adds it up, always in the same order
//
// ep_lib.Buffer does the same, bit for bit, with fewer and faster kernels: <moe/direct/notify_dispatch.cu> is layout and
// notify in one launch, <moe/direct/dispatch_bulk.cu> lets TMA load while lanes store, and <moe/direct/combine_push.cu>
// needs no stage.
#include <moe/common/sums.cuh>
#include <moe/common/dispatch.cuh>
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

using namespace ep;

extern "C" __global__ void exchange_counts(NotifyArgs args, const int* rank_counts, const int* expert_counts,
                                           int* plan) {
    notify(args, rank_counts, expert_counts, plan);
}

// ---- dispatch --------------------------------------------------------------------------------------------------------

constexpr int kDispatchVectors = 7;  // in flight per lane: 7 * 32 * 16 bytes = half of a row of 7168 bytes

// Any grid, any whole number of warps; dynamic shared memory: one RowPtr per warp and rank.
//   x             [num_tokens, row_vectors]
//   topk_idx      [num_tokens, top_k]   global expert ids or -1
//   topk_weights  [num_tokens, top_k] or null
//   send_index, first_row               from `get_dispatch_layout` and `notify`
//   finished_blocks                     0; how many blocks have sent their rows
extern "C" __global__ void dispatch(DispatchArgs args, Signals signals, uint32_t* finished_blocks, const int4* x,
                                    const int* topk_idx, const float* topk_weights, const int* send_index,
                                    const int* first_row) {
    extern __shared__ RowPtr dispatch_row_ptrs[];
    RowPtr* const row_ptrs = dispatch_row_ptrs + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int row_vectors = args.row_vectors, num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, row_vectors);
        for (int p = 0; p < found; ++p) send_routing(args, row_ptrs[p], token, topk_idx, topk_weights);

        const int4* const source = x + static_cast<int64_t>(token) * row_vectors;
        for (int first = lane_id(); first < row_vectors; first += kDispatchVectors * kWarpSize) {
            int4 vectors[kDispatchVectors];
#pragma unroll
            for (int u = 0; u < kDispatchVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) vectors[u] = ld_nc_v4(source + i);
            }
            for (int p = 0; p < found; ++p) {
                int4* const row = row_ptrs[p].row;
#pragma unroll
                for (int u = 0; u < kDispatchVectors; ++u) {
                    const int i = first + u * kWarpSize;
                    if (i < row_vectors) st_na_v4(row + i, vectors[u]);
                }
            }
        }
    }

    // Data, then signal. Only the last block waits: all others have left the GPU, so it blocks no other.
    if (!is_last_block(finished_blocks)) return;
    signal_all(signals, kSignalRows);
    wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);
}

// One block. The barrier of a dispatch whose handle knows all counts already: `tag` names the handle.
extern "C" __global__ void enter(Signals signals, uint64_t tag, int* differs) {
    signal_all(signals, kSignalEnter, tag);
    if (wait_for_all(signals, kSignalEnter, signals.epoch, kPhaseLayout)) {
        compare_tags(signals, kSignalEnter, tag, differs);
    }
}

// ---- combine ---------------------------------------------------------------------------------------------------------

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

// Any grid, any whole number of warps; dynamic shared memory: one RowPtr per warp and rank.
//   out   [num_tokens, row_vectors]     sum over a token's ranks of weight * row; zeros for a token without a rank
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
template <typename T>
__global__ void combine(CombineArgs args, int4* out, const int* topk_idx, const float* topk_weights,
                        const int* send_index, const int* first_row) {
    extern __shared__ RowPtr combine_row_ptrs[];
    RowPtr* const row_ptrs = combine_row_ptrs + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int row_vectors = args.row_vectors, num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, row_vectors);
        if (topk_weights) {
            for (int p = lane_id(); p < found; p += kWarpSize) {
                row_ptrs[p].weight =
                    weight_on(args.top_k, args.experts_per_rank, row_ptrs[p].rank, token, topk_idx, topk_weights);
            }
            __syncwarp();
        }
        int4* const target = out + static_cast<int64_t>(token) * row_vectors;
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

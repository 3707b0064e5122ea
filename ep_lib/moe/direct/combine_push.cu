// Combine by pushing: the ranks that hold the experts send rows back while the tokens' owners already add them up.
//
// Some blocks send rows from wherever the experts left them to the `returned` area of their owner
// (<moe/direct/combine_send.cuh>). The other blocks add up (<moe/direct/combine_add.cuh>): a warp takes a token, waits
// for the groups with its rows, and sums them in ascending order of ranks, so the result does not depend on who came
// first. When nothing is left to send, all blocks add up.
//
// Blocks, not warps, have these roles: on one SM the loads of warps that add up would queue behind stores that wait for
// the links. A release waits for all stores in flight of its SM, so there are few releases. Every byte is stored twice,
// which takes 16 SMs or more; <moe/direct/combine_pull.cu> needs only 8 (benchmarks/NOTES.md).
//
// `returned` needs no credits: see <moe/common/epoch.cuh>. A sender waits for no other rank, so any number of blocks works.
#include <moe/direct/combine_add.cuh>

namespace ep::direct {

struct PushCombineArgs {
    Workspace workspace;
    uint64_t tag;  // must be the same on all ranks: names the handle
    AddArgs add;
    SendArgs send;    // at least 1 block
    int shares_area;  // 1: `returned` is the area in which a dispatch's rows arrive
};

namespace detail {

// Lists a token's rows on this rank, in ascending order of the ranks that sent them; a row has sent_vectors vectors.
EP_DEVICE int list_returned(const SendArgs& args, RowPtr* row_ptrs, const PerRank& send_indices, int4* own_rows,
                            int row_vectors, int sent_vectors) {
    __syncwarp();  // all lanes have read the previous token's pointers
    int found = 0;
#pragma unroll
    for (int i = 0; i < kRanksPerLane; ++i) {
        const int r = lane_id() + i * kWarpSize, s = send_indices.of[i];
        int rows_here;
        const int below = votes_below(s >= 0, &rows_here);
        if (s >= 0) {
            int4* const area = args.returned + static_cast<int64_t>(r) * args.max_tokens * sent_vectors;
            int4* const row =
                (r == rank() ? own_rows : area) + static_cast<int64_t>(s) * (r == rank() ? row_vectors : sent_vectors);
            row_ptrs[found + below] = {row, r, s, 1.0f};
        }
        found += rows_here;
    }
    __syncwarp();
    return found;
}

}  // namespace detail

// Any grid, at least send.warps warps per block. Dynamic shared memory: the larger of send_rows_shared and
// add_pieces_shared, as no block does both at once; send_records_shared; add_records_shared.
//   out           [num_tokens, row_vectors]
//   y             [rows that this rank received, row_vectors], in any of this GPU's memory
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   send_index, plan                     from `notify_dispatch`
//   differs       [ranks]                as in compare_tags
// kPacked: bfloat16 rows are sent as FP8 (<moe/direct/packed_rows.cuh>).
template <typename T, bool kPacked = false>
EP_DEVICE void combine_push(const PushCombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                            const float* topk_weights, const int* send_index, const int* plan, int* differs) {
    extern __shared__ __align__(kTmaSharedAlignment) int4 tma_shared[];
    const CombineMemory memory(tma_shared, args.add, args.send);
    const int row_vectors = args.add.row_vectors;
    const int sent_vectors = kPacked ? packed_vectors(row_vectors) : row_vectors;
    const detail::CombineStart start = detail::start_combine(args.workspace, args.add, plan);
    const Signals signals = this_epoch(args.workspace);
    bool ok = start.ok && barrier_before_reuse(signals, args.workspace.state->last_combine, kPhaseCombine);
    if (ok && blockIdx.x == 0) signal_all(signals, kSignalStaged, args.tag);

    if (ok && blockIdx.x < args.send.blocks) {
        const auto target = [&](const SentRow& out) {
            const int64_t at = static_cast<int64_t>(rank()) * args.send.max_tokens + out.send_index;
            return peer_ptr(args.send.returned + at * sent_vectors, out.owner);
        };
        send_rows<kPacked>(args.send, args.workspace, signals.epoch, memory.rows, memory.send_records, y, row_vectors,
                           plan + num_ranks(), target);
        __syncthreads();  // pieces reuse the rows' memory
    }
    if (ok && detail::same_tag_warp(signals, kSignalStaged, args.tag, &ok)) {
        int4* const own_rows = const_cast<int4*>(y) + static_cast<int64_t>(plan[rank()]) * row_vectors;
        detail::Tokens tokens(&args.workspace.state->next_token, args.add.num_tokens, send_index);
        Returns returns(args.send, nullptr, signals.epoch);
        const auto next = [&](RowPtr* row_ptrs, int* found) {
            const detail::OnItsWay here = tokens.next();
            if (here.token >= args.add.num_tokens) return here.token;
            *found = detail::list_returned(args.send, row_ptrs, here.send_indices, own_rows, row_vectors, sent_vectors);
            if (returns.wait_for(here.send_indices)) return here.token;
            ok = false;
            return args.add.num_tokens;
        };
        add_tokens<T, kPacked>(args.add, memory.add, out, topk_idx, topk_weights, next);
    }

    const LastBlock last = last_block(&args.workspace.state->finished_blocks, gridDim.x, ok);
    if (last == LastBlock::kNo) return;
    ok = last == LastBlock::kYes && wait_for_all(signals, kSignalStaged, signals.epoch, kPhaseCombine);
    if (!ok || !compare_tags(signals, kSignalStaged, args.tag, differs)) detail::spoil_sums(args.add, out);
    if (ok) {
        if (thread_in_block() == 0) args.workspace.state->last_combine = signals.epoch;
        if (thread_in_block() == 0 && args.shares_area) args.workspace.state->last_dispatch = signals.epoch;
        complete_epoch(args.workspace, signals);
    } else if (!start.is_void) {
        break_off(args.workspace);
    }
}

}  // namespace ep::direct

template <typename T, bool kPacked = false>
__global__ void __launch_bounds__(512)
    ep_combine_push(ep::direct::PushCombineArgs args, int4* out, const int4* y, const int* topk_idx,
                    const float* topk_weights, const int* send_index, const int* plan, int* differs) {
    ep::direct::combine_push<T, kPacked>(args, out, y, topk_idx, topk_weights, send_index, plan, differs);
}

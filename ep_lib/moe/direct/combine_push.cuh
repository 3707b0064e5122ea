// Combine by pushing: the ranks that hold the experts send rows back while the tokens' owners already add them up.
//
// <moe/common/sums.cuh> first copies all rows to symmetric memory, meets, and then reads them over the links. Here some blocks
// send rows from wherever the experts left them to their owner's `returned` area (<moe/direct/combine_send.cuh>). The other blocks
// add up (<moe/direct/combine_add.cuh>): a warp takes a token, waits for the groups with its rows, and sums them in ascending order
// of ranks, so the result does not depend on who came first. When nothing is left to send, all blocks add up.
//
// Blocks, not warps, have these roles: on one multiprocessor the loads of those who add up queue behind the stores that
// the links hold back. A release waits for all stores of its multiprocessor that are under way, so there are not many.
// Every byte is stored twice, which takes 16 multiprocessors or more; <moe/direct/combine_pull.cuh> does with 8
// (benchmarks/NOTES.md).
//
// `returned` needs no credits: see <moe/common/epoch.cuh>. Who sends waits for nobody, so any number of blocks will do.
#pragma once
#include <moe/direct/combine_add.cuh>

namespace ep {

struct PushCombineArgs {
    Board board;
    uint64_t note;  // must be the same on all ranks: names the handle
    AddArgs add;
    SendArgs send;  // at least 1 block
};

namespace detail {

// Where a token's rows are on this rank, in ascending order of the ranks that sent them.
EP_DEVICE int list_returned(const SendArgs& args, Place* places, const PerRank& slots, int4* own_rows,
                            int row_vectors) {
    __syncwarp();  // nobody reads the previous token's places any more
    int found = 0;
#pragma unroll
    for (int i = 0; i < kRanksALane; ++i) {
        const int r = lane_id() + i * kWarpSize, s = slots.of[i];
        const unsigned votes = __ballot_sync(kFullWarp, s >= 0);
        if (s >= 0) {
            int4* const area = args.returned + static_cast<int64_t>(r) * args.max_tokens * row_vectors;
            int4* const row = (r == rank() ? own_rows : area) + static_cast<int64_t>(s) * row_vectors;
            places[found + __popc(votes & ((1u << lane_id()) - 1))] = {row, r, s, 1.0f};
        }
        found += __popc(votes);
    }
    __syncwarp();
    return found;
}

}  // namespace detail

// Any grid, at least send.warps warps a block. Dynamic shared memory: the larger of send_rows_shared and
// add_pieces_shared, as no block does both at once; send_notes_shared; add_notes_shared.
//   out           [num_tokens, row_vectors]
//   y             [rows that this rank received, row_vectors], in any of this GPU's memory
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   slot, plan                           from `route`
//   differs       [ranks]                as in compare_notes
template <typename T>
EP_DEVICE void combine_push(const PushCombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                            const float* topk_weights, const int* slot, const int* plan, int* differs) {
    extern __shared__ __align__(kTmaSharedAlignment) int4 tma_shared[];
    const CombineMemory memory(tma_shared, args.add, args.send);
    const int row_vectors = args.add.row_vectors;
    if (block_has_fault()) return;
    const Signals signals = this_operation(args.board);
    if (!meet_again(signals, args.board.state->last_combine, kPhaseCombine)) return;
    if (blockIdx.x == 0) signal_all(signals, kSignalStaged, args.note);

    if (blockIdx.x < args.send.blocks) {
        const auto target = [&](const SentRow& out) {
            const int64_t place = static_cast<int64_t>(rank()) * args.send.max_tokens + out.slot;
            return peer_ptr(args.send.returned + place * row_vectors, out.owner);
        };
        send_rows(args.send, args.board, signals.operation, memory.rows, memory.send_notes, y, row_vectors,
                  plan + num_ranks(), target);
        __syncthreads();  // pieces come to where rows were
    }
    if (detail::same_note_warp(signals, kSignalStaged, args.note)) {
        int4* const own_rows = const_cast<int4*>(y) + static_cast<int64_t>(plan[rank()]) * row_vectors;
        detail::Tokens tokens(&args.board.state->next_token, args.add.num_tokens, slot);
        Returns returns(args.send, nullptr, signals.operation);
        const auto next = [&](Place* places, int* found) {
            const detail::OnItsWay here = tokens.next();
            if (here.token >= args.add.num_tokens) return here.token;
            *found = detail::list_returned(args.send, places, here.slots, own_rows, row_vectors);
            return returns.wait_for(here.slots) ? here.token : args.add.num_tokens;
        };
        add_tokens<T>(args.add, memory.add, out, topk_idx, topk_weights, next);
    }
    if (!is_last_block(&args.board.state->finished_blocks)) return;
    if (!wait_for_all(signals, kSignalStaged, signals.operation, kPhaseCombine)) return;
    compare_notes(signals, kSignalStaged, args.note, differs);
    if (thread_in_block() == 0) args.board.state->last_combine = signals.operation;
    complete_operation(args.board, signals);
}

}  // namespace ep

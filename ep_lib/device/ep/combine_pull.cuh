// Combine by pulling, at full speed: for experts that write into symmetric memory, so that nothing is copied first.
//
// As in <ep/combine.cuh> a token's owner reads its rows from the ranks that hold them; <ep/combine_add.cuh> adds them up.
// 8 multiprocessors keep the links as busy as 24. Warps take tokens as they come, as in <ep/dispatch_bulk.cuh>.
//
// Reading carries requests one way and data the other: 328 GB/s where stores reach 355. <ep/combine_push.cuh> stores,
// but every byte twice, which takes many multiprocessors. With few, rows that lie elsewhere are copied first.
#pragma once
#include <ep/combine_add.cuh>

namespace ep {

struct PullCombineArgs {
    Board board;
    int4* rows;     // symmetric [ranks * max_tokens, row_vectors]: the experts' rows
    uint64_t note;  // must be the same on all ranks: names the handle
    AddArgs add;
};

// Any grid, any whole number of warps; dynamic shared memory: add_pieces_shared and add_notes_shared.
//   out           [num_tokens, row_vectors]
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   slot, plan                          from `route`
//   differs       [ranks]               as in compare_notes
template <typename T>
EP_DEVICE void combine_pull(const PullCombineArgs& args, int4* out, const int* topk_idx, const float* topk_weights,
                            const int* slot, const int* plan, int* differs) {
    extern __shared__ __align__(kBulkSharedAlignment) int4 bulk_shared[];
    if (block_has_fault()) return;
    const Signals signals = this_operation(args.board);
    if (blockIdx.x == 0) signal_all(signals, kSignalStaged, args.note);

    const detail::PerRank begins = detail::load_per_rank(plan);
    detail::Tokens tokens(&args.board.state->next_item, args.add.num_tokens, slot);
    const bool same = detail::same_note_warp(signals, kSignalStaged, args.note);
    if (same) {
        bulk_fence();  // what the peers' threads wrote is read by the copy engine
        const auto next = [&](Place* places, int* found) {
            const detail::OnItsWay here = tokens.next();
            if (here.token < args.add.num_tokens) {
                *found = detail::list_places(places, here.slots, begins, args.rows, args.add.row_vectors);
            }
            return here.token;
        };
        const int warps = warps_in_block();
        const size_t pieces = add_pieces_shared(warps, args.add.stages, args.add.piece_vectors, args.add.most_ranks);
        const AddMemory memory(args.add, bulk_shared, bulk_shared + pieces / sizeof(int4), warp_id(), warps);
        add_tokens<T>(args.add, memory, out, topk_idx, topk_weights, next);
    }

    if (!is_last_block(&args.board.state->finished_blocks)) return;
    if (!wait_for_all(signals, kSignalStaged, signals.operation, kPhaseCombine)) return;
    compare_notes(signals, kSignalStaged, args.note, differs);
    if (same) {
        signal_all(signals, kSignalPulled);  // experts may write into `rows` again once all have read theirs
        if (!wait_for_all(signals, kSignalPulled, signals.operation, kPhaseCombine)) return;
    }
    complete_operation(args.board, signals);
}

}  // namespace ep

// Combine by pushing: the ranks that hold the experts send rows back while the tokens' owners already add them up.
//
// <ep/combine.cuh> first copies all rows to symmetric memory, meets, and then reads them over the links. Here rows go
// from wherever the experts left them: no copy before. Rows of one source lie together on this rank, in the source's
// own order, so what goes back is cut into groups of consecutive rows. Some blocks push: the copy engine loads rows
// (<ep/bulk.cuh>) and stores them to their owner's `returned` area, then the group is signalled. The other blocks add up
// (<ep/combine_add.cuh>): a warp takes a token, waits for the groups with its rows, and sums them in ascending order of
// ranks, so the result does not depend on who came first. When nothing is left to push, all blocks add up.
//
// Blocks, not warps, have these roles: on one multiprocessor the loads of those who add up queue behind the stores that
// the links hold back. A release waits for all stores of its multiprocessor that are under way, so there are not many.
// Every byte is stored twice, which takes many multiprocessors; <ep/combine_pull.cuh> does with 8 what rows in symmetric
// memory allow (benchmarks/NOTES.md).
//
// `arrived` needs no clearing, as numbers of operations only grow; `returned` no credits: see <ep/operation.cuh>. Who
// pushes waits for nobody, so any number of blocks will do.
#pragma once
#include <ep/combine_add.cuh>

namespace ep {

struct PushCombineArgs {
    Board board;
    int4* returned;     // symmetric [ranks, max_tokens, row_vectors]
    uint64_t* arrived;  // symmetric [ranks, max_groups]: the last operation whose group has come
    uint64_t note;      // must be the same on all ranks: names the handle
    AddArgs add;
    int max_tokens;
    int max_groups;  // max_tokens / group_rows, rounded up
    int group_rows;
    int push_blocks;  // at least 1
    int push_warps;   // of such a block
    int push_stages;  // rows that such a warp has under way, at least 2
};

namespace detail {

// A row on its way back. In shared memory, one a stage.
struct Outgoing {
    int owner;  // whose token it is; -1: there are no more
    int slot;   // of the row among the owner's on this rank
    int group;  // that is complete with this row; -1: there is more of it
    int unused;
};

}  // namespace detail

// Bytes of dynamic shared memory: rows of the warps that push, and in the same place later pieces of those that add up;
// an Outgoing and a barrier a row, both of 16 bytes; add_notes_shared.
EP_HOST_DEVICE size_t push_rows_shared(int push_warps, int push_stages, int row_vectors) {
    return static_cast<size_t>(push_warps) * push_stages * row_vectors * sizeof(int4);
}
EP_HOST_DEVICE size_t push_notes_shared(int push_warps, int push_stages) {
    return push_warps * push_stages * (sizeof(detail::Outgoing) + 2 * sizeof(uint64_t));
}

namespace detail {

// Hands out rows to one warp that pushes, group by group, as warps come for them. Consecutive groups go to different
// owners, so all links are busy all the time. All lanes call together and know the same.
class Groups {
  public:
    EP_DEVICE Groups(uint32_t* next_group, int group_rows, const int* received)
        : next_group_(next_group), group_rows_(group_rows), received_(load_per_rank(received)) {
        int most = 0, before = 0;
        for (int r = 0; r < num_ranks(); ++r) {
            const int rows = of(received_, r);
            if (r != rank()) most = max(most, rows);
            if (r % kWarpSize == lane_id()) first_y_.of[r / kWarpSize] = before;
            before += rows;
        }
        num_groups_ = (most + group_rows - 1) / group_rows * (num_ranks() - 1);
        take();
    }

    // The next row, and where it is in y.
    EP_DEVICE Outgoing next(int64_t* y_row) {
        while (row_ == end_) {
            const int item = static_cast<int>(__shfl_sync(kFullWarp, ahead_, 0));
            if (item >= num_groups_) return {-1, 0, -1, 0};
            take();
            const int others = num_ranks() - 1;
            group_ = item / others;
            owner_ = (rank() + 1 + (item + group_) % others) % num_ranks();
            row_ = group_ * group_rows_;
            end_ = max(row_, min(row_ + group_rows_, of(received_, owner_)));
        }
        *y_row = of(first_y_, owner_) + row_;
        const int slot = row_++;
        return {owner_, slot, row_ == end_ ? group_ : -1, 0};
    }

  private:
    EP_DEVICE void take() {
        if (lane_id() == 0) ahead_ = atom_add_relaxed_gpu_u32(next_group_, 1);
    }
    EP_DEVICE static int of(const PerRank& values, int r) {
        int value = 0;
#pragma unroll
        for (int i = 0; i < kRanksALane; ++i) {
            const int here = __shfl_sync(kFullWarp, values.of[i], r % kWarpSize);
            if (i == r / kWarpSize) value = here;
        }
        return value;
    }

    uint32_t* const next_group_;
    const int group_rows_;
    PerRank received_, first_y_;  // of each owner: rows of its tokens here, and where in y they begin
    uint32_t ahead_ = 0;          // the next group, asked for in advance; lane 0 knows
    int num_groups_;
    int owner_ = 0, group_ = 0, row_ = 0, end_ = 0;
};

// One warp: pushes rows of `y` until all are gone. It waits for a row's store when the next one is on its way.
EP_DEVICE void push_rows(const PushCombineArgs& args, uint64_t operation, int4* rows, uint64_t* barriers,
                         Outgoing* outgoing, const int4* y, const int* received) {
    const int row_vectors = args.add.row_vectors;
    const uint32_t row_bytes = row_vectors * sizeof(int4);
    BulkRing ring(barriers, args.push_stages);
    Groups groups(&args.board.state->next_item, args.group_rows, received);
    const auto fill = [&](int stage) {
        int64_t y_row = 0;
        const Outgoing next = groups.next(&y_row);
        if (lane_id() == 0) outgoing[stage] = next;
        if (next.owner >= 0) {
            bulk_load(rows + stage * row_vectors, y + y_row * row_vectors, row_bytes, barriers + stage);
            bulk_arrive(barriers + stage, row_bytes);
        }
        __syncwarp();
    };
    const auto signal = [&](const Outgoing& out) {
        if (out.group < 0 || lane_id() != 0) return;
        uint64_t* const flag = args.arrived + static_cast<int64_t>(rank()) * args.max_groups + out.group;
        st_release_sys_u64(peer_ptr(flag, out.owner), operation);
    };
    int free_stage = args.push_stages - 1;
    for (int stage = 0; stage < free_stage; ++stage) fill(stage);
    Outgoing before = {-1, 0, -1, 0};
    for (;; ring.next()) {
        const Outgoing out = outgoing[ring.stage];
        if (out.owner < 0) break;
        const int64_t place = static_cast<int64_t>(rank()) * args.max_tokens + out.slot;
        ring.wait();
        bulk_store(peer_ptr(args.returned + place * row_vectors, out.owner), rows + ring.stage * row_vectors,
                   row_bytes);
        bulk_commit();
        bulk_wait_written<1>();
        signal(before);
        before = out;
        fill(free_stage);
        free_stage = ring.stage;
    }
    bulk_wait_written<0>();
    signal(before);
}

// Where a token's rows are on this rank, in ascending order of the ranks that sent them; waits until they are there.
// -1 if they did not come in time.
EP_DEVICE int find_returned(const PushCombineArgs& args, uint64_t operation, Place* places, const PerRank& slots,
                            int4* own_rows) {
    __syncwarp();  // nobody reads the previous token's places any more
    int found = 0;
    bool failed = false;
#pragma unroll
    for (int i = 0; i < kRanksALane; ++i) {
        const int r = lane_id() + i * kWarpSize, s = slots.of[i];
        const unsigned votes = __ballot_sync(kFullWarp, s >= 0);
        if (s >= 0) {
            int4* const area = args.returned + static_cast<int64_t>(r) * args.max_tokens * args.add.row_vectors;
            int4* const row = (r == rank() ? own_rows : area) + static_cast<int64_t>(s) * args.add.row_vectors;
            places[found + __popc(votes & ((1u << lane_id()) - 1))] = {row, r, s, 1.0f};
            if (r != rank()) {
                const int group = s / args.group_rows;
                failed |= !wait_until_ge(args.arrived + static_cast<int64_t>(r) * args.max_groups + group, operation,
                                         {kPhaseCombine, r, group});
            }
        }
        found += __popc(votes);
    }
    const bool any_failed = __any_sync(kFullWarp, failed);
    bulk_fence();  // what the peers' threads wrote is read by the copy engine
    __syncwarp();
    return any_failed ? -1 : found;
}

}  // namespace detail

// Any grid, at least push_warps warps a block; dynamic shared memory as above.
//   out           [num_tokens, row_vectors]
//   y             [rows that this rank received, row_vectors], in any of this GPU's memory
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   slot, plan                           from `route`
//   differs       [ranks]                as in compare_notes
template <typename T>
EP_DEVICE void combine_push(const PushCombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                            const float* topk_weights, const int* slot, const int* plan, int* differs) {
    extern __shared__ __align__(kBulkSharedAlignment) int4 bulk_shared[];
    const int warp = warp_id(), warps = warps_in_block(), row_vectors = args.add.row_vectors;
    const size_t rows = push_rows_shared(args.push_warps, args.push_stages, row_vectors);
    const size_t pieces = add_pieces_shared(warps, args.add.stages, args.add.piece_vectors, args.add.most_ranks);
    char* const notes = reinterpret_cast<char*>(bulk_shared) + max(rows, pieces);
    if (block_has_fault()) return;
    const Signals signals = this_operation(args.board);
    if (!meet_again(signals, args.board.state->last_combine, kPhaseCombine)) return;
    if (blockIdx.x == 0) signal_all(signals, kSignalStaged, args.note);

    if (blockIdx.x < args.push_blocks) {
        if (warp < args.push_warps && num_ranks() > 1) {
            const int first = warp * args.push_stages;
            detail::Outgoing* const outgoing = reinterpret_cast<detail::Outgoing*>(notes);
            uint64_t* const barriers = reinterpret_cast<uint64_t*>(outgoing + args.push_warps * args.push_stages);
            detail::push_rows(args, signals.operation, bulk_shared + static_cast<size_t>(first) * row_vectors,
                              barriers + first, outgoing + first, y, plan + num_ranks());
        }
        __syncthreads();  // pieces come to where rows were
    }
    if (detail::same_note_warp(signals, kSignalStaged, args.note)) {
        const AddMemory memory(args.add, bulk_shared, notes + push_notes_shared(args.push_warps, args.push_stages),
                               warp, warps);
        int4* const own_rows = const_cast<int4*>(y) + static_cast<int64_t>(plan[rank()]) * row_vectors;
        detail::Tokens tokens(&args.board.state->next_token, args.add.num_tokens, slot);
        const auto next = [&](Place* places, int* found) {
            const detail::OnItsWay here = tokens.next();
            if (here.token >= args.add.num_tokens) return here.token;
            *found = detail::find_returned(args, signals.operation, places, here.slots, own_rows);
            return *found < 0 ? args.add.num_tokens : here.token;
        };
        add_tokens<T>(args.add, memory, out, topk_idx, topk_weights, next);
    }
    if (!is_last_block(&args.board.state->finished_blocks)) return;
    if (!wait_for_all(signals, kSignalStaged, signals.operation, kPhaseCombine)) return;
    compare_notes(signals, kSignalStaged, args.note, differs);
    if (thread_in_block() == 0) args.board.state->last_combine = signals.operation;
    complete_operation(args.board, signals);
}

}  // namespace ep

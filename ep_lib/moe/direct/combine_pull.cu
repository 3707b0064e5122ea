// Combine by pulling: a token's owner reads its rows from the symmetric memory of the ranks that hold them and adds them
// up (<moe/direct/combine_add.cuh>). 8 SMs keep the links as busy as 24. Warps take tokens as they come.
//
// Either experts write their rows there, or blocks beyond the first pull_blocks do, while other ranks already read the
// first groups: these blocks copy rows from other memory (<moe/direct/combine_send.cuh>), in a fifth of the time, or
// sum the results of a row's experts, if rows are grouped by expert (<moe/direct/expert_rows.cuh>).
//
// Reads send requests one way and data the other: 328 GB/s where stores reach 355. <moe/direct/combine_push.cu> uses
// stores, but stores every byte twice, which takes many SMs.
#include <moe/direct/combine_add.cuh>
#include <moe/direct/expert_rows.cuh>

namespace ep::direct {

struct PullCombineArgs {
    Workspace workspace;
    uint64_t tag;  // must be the same on all ranks: names the handle
    AddArgs add;
    SendArgs send;    // send.returned has the rows; with kInPlace the other fields only size shared memory
    const int* slot;  // [capacity, top_k], only with kByExpert: as in ExpertRowsArgs
    int capacity;
    int pull_blocks;
};

// Where rows are when the kernel begins: in symmetric memory; in other memory of this GPU, in the order of arrival; or
// there, grouped by expert.
enum RowsAre { kInPlace, kElsewhere, kByExpert };

namespace detail {

// One block: sums rows' choices into `returned`, and signals each group to its owner, which may be this rank.
template <typename T>
EP_DEVICE void sum_rows(const PullCombineArgs& args, uint64_t epoch, const int4* y, const int* received) {
    const int row_vectors = args.add.row_vectors, top_k = args.add.top_k;
    Groups<true> groups(&args.workspace.state->next_item, args.send.group_rows, received);
    for (SentRow row = groups.next(); row.owner >= 0; row = groups.next()) {
        if (row.row < args.capacity) {
            int4* const sum = args.send.returned + static_cast<int64_t>(row.row) * row_vectors;
            sum_choices<T>(sum, y, args.slot + static_cast<int64_t>(row.row) * top_k, top_k, row_vectors);
        }
        if (row.group < 0) continue;
        __syncwarp();  // the group's rows are of all lanes
        if (lane_id() == 0) signal_group(args.send.arrived, args.send.max_groups, row.group, row.owner, epoch);
    }
}

}  // namespace detail

// A grid of pull_blocks, and further blocks that copy or sum choices; without further ones, all blocks first do that.
// Shared memory as for combine_push.
//   out           [num_tokens, row_vectors]
//   y             [rows that this rank received, row_vectors], or [M, row_vectors] as grouped; null with kInPlace
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   send_index, plan                     from `notify_dispatch`
//   differs       [ranks]               as in compare_tags
template <typename T, RowsAre kRows>
EP_DEVICE void combine_pull(const PullCombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                            const float* topk_weights, const int* send_index, const int* plan, int* differs) {
    extern __shared__ __align__(kTmaSharedAlignment) int4 tma_shared[];
    const CombineMemory memory(tma_shared, args.add, args.send);
    const int row_vectors = args.add.row_vectors;
    const detail::CombineStart start = detail::start_combine(args.workspace, args.add, plan);
    const Signals signals = this_epoch(args.workspace);
    bool ok = start.ok;
    if (ok && blockIdx.x == 0) signal_all(signals, kSignalStaged, args.tag);

    const bool brings = blockIdx.x >= args.pull_blocks || gridDim.x == args.pull_blocks;
    if (kRows != kInPlace && ok && brings) {
        if constexpr (kRows == kByExpert) {
            detail::sum_rows<T>(args, signals.epoch, y, plan + num_ranks());
        } else {
            const auto target = [&](const SentRow& out) {
                return args.send.returned + static_cast<int64_t>(out.row) * row_vectors;
            };
            send_rows(args.send, args.workspace, signals.epoch, memory.rows, memory.send_records, y, row_vectors,
                      plan + num_ranks(), target);
        }
        if (is_last_block(&args.workspace.state->copied_blocks, args.send.blocks)) signal_all(signals, kSignalRows);
    }
    if (ok && blockIdx.x < args.pull_blocks) {
        const detail::PerRank begins = detail::load_per_rank(plan);
        detail::Tokens tokens(&args.workspace.state->next_token, args.add.num_tokens, send_index);
        const bool same = detail::same_tag_warp(signals, kSignalStaged, args.tag, &ok);
        Returns returns(args.send, signals.flags + kSignalRows * num_ranks(), signals.epoch, kRows == kByExpert);
        const auto next = [&](RowPtr* row_ptrs, int* found) {
            const detail::OnItsWay here = tokens.next();
            if (here.token >= args.add.num_tokens) return here.token;
            *found = detail::list_row_ptrs(row_ptrs, here.send_indices, begins, args.send.returned, row_vectors);
            if (kRows == kInPlace) return here.token;
            for (int p = lane_id(); p < *found && kRows == kElsewhere; p += kWarpSize) {  // own rows need no copy
                const int64_t index = row_ptrs[p].index;
                if (row_ptrs[p].rank == rank()) row_ptrs[p].row = const_cast<int4*>(y) + index * row_vectors;
            }
            if (returns.wait_for(here.send_indices)) return here.token;
            ok = false;
            return args.add.num_tokens;
        };
        tma_fence();  // TMA reads what the peers' threads wrote
        if (same) add_tokens<T>(args.add, memory.add, out, topk_idx, topk_weights, next);
    }

    const LastBlock last = last_block(&args.workspace.state->finished_blocks, gridDim.x, ok);
    if (last == LastBlock::kNo) return;
    ok = last == LastBlock::kYes && wait_for_all(signals, kSignalStaged, signals.epoch, kPhaseCombine);
    const bool same = ok && compare_tags(signals, kSignalStaged, args.tag, differs);
    if (same) {
        signal_all(signals, kSignalPulled);  // the rows' memory may be written again once all have read theirs
        ok = wait_for_all(signals, kSignalPulled, signals.epoch, kPhaseCombine);
    }
    if (!ok || !same) detail::spoil_sums(args.add, out);
    if (ok) {
        complete_epoch(args.workspace, signals);
    } else if (!start.is_void) {
        break_off(args.workspace);
    }
}

}  // namespace ep::direct

template <typename T, ep::direct::RowsAre kRows>
__global__ void __launch_bounds__(512)
    ep_combine_pull(ep::direct::PullCombineArgs args, int4* out, const int4* y, const int* topk_idx,
                    const float* topk_weights, const int* send_index, const int* plan, int* differs) {
    ep::direct::combine_pull<T, kRows>(args, out, y, topk_idx, topk_weights, send_index, plan, differs);
}

// Where every row goes, in one launch: DeepEP's get_dispatch_layout and notify_dispatch together. The results are those of
// <moe/common/layout.cuh> and <moe/common/notify.cuh>, faster.
//
// One block per destination. Each warp takes consecutive tokens, so one prefix sum over the warps is enough for 32
// tokens per thread. The last block to finish exchanges counts with the other ranks and adds them up.
//
// The kernel also checks values. If one is wrong, it sends nothing to other ranks: the operation has not begun, and the
// dispatch kernel behind it does nothing. If a rank does not come, or ranks passed different options that the host will
// not compare, the plan is void: all zeros.
#include <moe/common/layout.cuh>
#include <moe/common/epoch.cuh>

namespace ep::direct {

enum NotifyStatus { kNotified, kRefused, kNotifyFailed };

// Memory that the host reads while the next kernel runs.
struct RouteReport {
    uint64_t done;  // 4 * ticket + NotifyStatus, stored last
    int plan[1];    // the first of its ints: see ep_notify_dispatch
};

struct NotifyDispatchArgs {
    Workspace workspace;
    int* counts;          // as in NotifyArgs
    int* expert_counts;   // as in NotifyArgs
    RouteReport* report;  // null: the host does not wait for it, and a wrong value becomes a fault
    uint64_t ticket;
    int num_tokens;
    int top_k;
    int experts_per_rank;
    int options;
    int expert_alignment;  // plan's tokens of each expert are rounded up to a multiple of it
};

constexpr int kRouteRounds = 32;  // a lane remembers each in one bit of an int

// Counts a token's choices of the experts from `first_expert` on; returns whether it had any. Reads ids in vectors of
// 16 bytes if a token's ids fill whole ones.
template <typename Index>
EP_DEVICE bool count_choices(const NotifyDispatchArgs& args, const Index* topk_idx, int token, int first_expert,
                             int* choices) {
    constexpr int kIds = sizeof(int4) / sizeof(Index);
    const Index* const ids = topk_idx + static_cast<int64_t>(token) * args.top_k;
    bool any = false;
    const auto count = [&](Index id) {
        const int64_t local = static_cast<int64_t>(id) - first_expert;
        if (local < 0 || local >= args.experts_per_rank) return;
        any = true;
        atomicAdd(&choices[local], 1);
    };
    if (args.top_k % kIds == 0 && reinterpret_cast<uint64_t>(topk_idx) % sizeof(int4) == 0) {
#pragma unroll 4
        for (int k = 0; k < args.top_k; k += kIds) {
            const int4 vector = ld_nc_v4(reinterpret_cast<const int4*>(ids + k));
            if constexpr (kIds == 4) {
                count(vector.x), count(vector.y), count(vector.z), count(vector.w);
            } else {
                count(static_cast<Index>(static_cast<uint64_t>(static_cast<uint32_t>(vector.y)) << 32 |
                                         static_cast<uint32_t>(vector.x)));
                count(static_cast<Index>(static_cast<uint64_t>(static_cast<uint32_t>(vector.w)) << 32 |
                                         static_cast<uint32_t>(vector.z)));
            }
        }
    } else {
        for (int k = 0; k < args.top_k; ++k) count(ids[k]);
    }
    return any;
}

// One destination, by a block; `left_out`: nothing goes there. `choices` [experts_per_rank] and `warp_totals` are shared
// memory; the rest as in `get_dispatch_layout`.
template <typename Index>
EP_DEVICE void lay_out_destination(int destination, bool left_out, const NotifyDispatchArgs& args,
                                   const Index* topk_idx, int* send_index, int* rank_counts, int* expert_counts,
                                   int* choices, int* warp_totals) {
    const int experts = args.experts_per_rank, first_expert = destination * experts;
    const int thread = thread_in_block(), num_threads = threads_in_block();
    for (int e = thread; e < experts; e += num_threads) choices[e] = 0;
    __syncthreads();

    // A warp takes consecutive tokens, kWarpSize of them per round; each lane remembers one bit per round.
    const int lane = lane_id();
    int before = 0;  // tokens for this destination in earlier spans
    for (int span = 0; span < args.num_tokens; span += kRouteRounds * num_threads) {
        const int rounds = (min(args.num_tokens - span, kRouteRounds * num_threads) + num_threads - 1) / num_threads;
        const int first = span + warp_id() * rounds * kWarpSize + lane;
        unsigned went = 0;
        int of_warp = 0;
        for (int round = 0; round < rounds; ++round) {
            const int token = first + round * kWarpSize;
            const bool goes =
                !left_out && token < args.num_tokens && count_choices(args, topk_idx, token, first_expert, choices);
            went |= static_cast<unsigned>(goes) << round;
            of_warp += __popc(__ballot_sync(kFullWarp, goes));
        }
        int total = 0;
        int position = before + sum_of_lower_warps(of_warp, warp_totals, &total);
        before += total;
        for (int round = 0; round < rounds; ++round) {
            const int token = first + round * kWarpSize;
            const bool goes = went >> round & 1;
            int of_round;
            const int below = votes_below(goes, &of_round);
            if (token < args.num_tokens) {
                send_index[static_cast<int64_t>(token) * num_ranks() + destination] = goes ? position + below : -1;
            }
            position += of_round;
        }
    }
    if (thread == 0) rank_counts[destination] = before;
    for (int e = thread; e < experts; e += num_threads) expert_counts[first_expert + e] = choices[e];
    __syncthreads();  // choices are cleared again
}

// The whole grid: checks ids and weights, and makes the handle's own copy of the ids.
template <typename Index>
EP_DEVICE void check_choices(const NotifyDispatchArgs& args, const Index* topk_idx, const float* topk_weights,
                             int* topk_copy) {
    const int choices = args.num_tokens * args.top_k, num_experts = args.experts_per_rank * num_ranks();
    const int stride = gridDim.x * threads_in_block();
    for (int i = blockIdx.x * threads_in_block() + thread_in_block(); i < choices; i += stride) {
        const Index id = topk_idx[i];
        topk_copy[i] = static_cast<int>(id);
        if (id < -1 || id >= num_experts) atomicMax(&args.workspace.state->bad_expert, 0xffffffffu - i);
        const uint32_t bits = topk_weights ? __float_as_int(topk_weights[i]) : 0;
        if ((bits & 0x7f800000) == 0x7f800000) atomicMax(&args.workspace.state->bad_weight, 0xffffffffu - i);
    }
}

// One thread of the last block: whether a value is wrong. Without a report, a wrong value becomes a fault.
template <typename Index>
EP_DEVICE bool refuse(const NotifyDispatchArgs& args, const Index* topk_idx, const float* topk_weights) {
    WorkspaceState* const state = args.workspace.state;
    const uint32_t expert = ld_relaxed_gpu_u32(&state->bad_expert), weight = ld_relaxed_gpu_u32(&state->bad_weight);
    if (expert == 0 && weight == 0) return false;
    st_relaxed_gpu_u32(&state->bad_expert, 0);
    st_relaxed_gpu_u32(&state->bad_weight, 0);
    if (args.report) return true;
    const int element = static_cast<int>(0xffffffffu - (expert ? expert : weight));
    const uint64_t seen = expert ? static_cast<uint64_t>(static_cast<int64_t>(topk_idx[element]))
                                 : static_cast<uint32_t>(__float_as_int(topk_weights[element]));
    record_fault(kFaultInput, {kPhaseLayout, -1, element}, seen, expert ? kNoExpert : kNotFinite);
    return true;
}

// The last block: copies the experts' tokens behind the plan, then rounds them up. If the host will not compare
// options, this does: false if they differ.
EP_DEVICE bool finish_plan(const NotifyDispatchArgs& args, int* plan) {
    const int ranks = num_ranks(), thread = thread_in_block(), alignment = args.expert_alignment;
    int different = 0;
    for (int e = thread; e < args.experts_per_rank; e += threads_in_block()) {
        int* const tokens = plan + 3 * ranks + e;
        tokens[args.experts_per_rank + 1] = *tokens;
        *tokens = (*tokens + alignment - 1) / alignment * alignment;
    }
    for (int r = thread; r < ranks && !args.report; r += threads_in_block()) {
        const int options = plan[2 * ranks + r];
        if (options == args.options) continue;
        record_fault(kFaultOptions, {kPhaseLayout, r, -1}, options, args.options);
        different = 1;
    }
    return __syncthreads_or(different) == 0;
}

// Any grid up to one block per rank, any whole number of warps. Dynamic shared memory: one int per warp (kMaxWarps of
// them), and one for each expert of a rank. Index is int or long long. Arguments as in `get_dispatch_layout`
// and `notify`, and
//   topk_weights  [num_tokens, top_k] or null
//   topk_copy     [num_tokens, top_k]   out
//   plan          out, as in `notify`; after it 1 if the plan is void and nothing is sent, else 0; and after that tokens
//                 [experts_per_rank], not rounded up
template <typename Index>
EP_DEVICE void notify_dispatch(const NotifyDispatchArgs& args, const Index* topk_idx, const float* topk_weights,
                               int* topk_copy, int* send_index, int* rank_counts, int* choice_counts, int* plan) {
    extern __shared__ int layout_shared[];
    __shared__ int refused;
    const bool ok = !operation_is_failing(args.workspace);
    if (ok) {
        check_choices(args, topk_idx, topk_weights, topk_copy);
        const Signals signals = this_epoch(args.workspace);
        for (int destination = blockIdx.x; destination < num_ranks(); destination += gridDim.x) {
            lay_out_destination(destination, signals.leave_out(destination), args, topk_idx, send_index, rank_counts,
                                choice_counts, layout_shared + kMaxWarps, layout_shared);
        }
    }
    const LastBlock last = last_block(&args.workspace.state->finished_blocks, gridDim.x, ok);
    if (last == LastBlock::kNo) return;

    const int thread = thread_in_block(), plan_ints = 3 * num_ranks() + args.experts_per_rank;
    NotifyStatus status = kNotifyFailed;
    bool is_void = true;
    if (last == LastBlock::kYes) {
        if (thread == 0) refused = refuse(args, topk_idx, topk_weights);
        __syncthreads();
        if (refused) status = kRefused;
        const Signals signals = this_epoch(args.workspace);
        const NotifyArgs tell = {signals, args.counts, args.expert_counts, args.experts_per_rank, args.options};
        if (!refused && notify(tell, rank_counts, choice_counts, plan)) {
            status = kNotified;
            complete_epoch(args.workspace, signals);
            __syncthreads();
            is_void = !finish_plan(args, plan);
        }
    }
    if (status == kNotifyFailed) break_off(args.workspace);
    if (is_void) fill_with_zeros(plan, plan_ints, fillers_of_block());
    if (is_void) fill_with_zeros(plan + plan_ints + 1, args.experts_per_rank, fillers_of_block());
    if (thread == 0) plan[plan_ints] = is_void;
    if (!args.report) return;
    if (status == kNotified) {
        int* const reported = args.report->plan;  // the struct names the first of them
        for (int i = thread; i < plan_ints; i += threads_in_block()) reported[i] = plan[i];
    }
    __syncthreads();
    if (thread == 0) st_release_sys_u64(&args.report->done, 4 * args.ticket + status);
}

}  // namespace ep::direct

template <typename Index>
__global__ void __launch_bounds__(1024)
    ep_notify_dispatch(ep::direct::NotifyDispatchArgs args, const Index* topk_idx, const float* topk_weights,
                       int* topk_copy, int* send_index, int* rank_counts, int* choice_counts, int* plan) {
    ep::direct::notify_dispatch<Index>(args, topk_idx, topk_weights, topk_copy, send_index, rank_counts, choice_counts,
                                       plan);
}

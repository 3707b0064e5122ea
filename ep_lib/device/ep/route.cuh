// Routing in one launch: <ep/layout.cuh> and <ep/notify.cuh> together, and quicker. The results are the same.
//
// A block a destination. Each warp takes consecutive tokens, so one prefix sum over the warps is enough for 32 tokens a
// thread. The last block to finish tells the other ranks and adds up what they tell.
#pragma once
#include <ep/layout.cuh>
#include <ep/notify.cuh>

namespace ep {

struct RouteArgs {
    NotifyArgs notify;
    uint32_t* finished_blocks;
    int num_tokens;
    int top_k;
};

constexpr int kRouteRounds = 32;  // bits of a lane's memory

// The sum of `value` over the warps below this one, and over all. `warp_totals` [kMaxWarps] is shared memory.
EP_DEVICE int sum_of_lower_warps(int value, int* warp_totals, int* total) {
    const int lane = lane_id();
    __syncthreads();  // warp_totals of an earlier call have been read
    if (lane == 0) warp_totals[warp_id()] = value;
    __syncthreads();
    const int mine = lane < warps_in_block() ? warp_totals[lane] : 0;  // no more warps than lanes
    *total = __reduce_add_sync(kFullWarp, mine);
    return __reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0);
}

// Adds a token's choices of the experts from `first_expert` on; whether it had any. Ids are read in vectors of 16 bytes
// where a token's ids fill some.
template <typename Index>
EP_DEVICE bool count_choices(const RouteArgs& args, const Index* topk_idx, int token, int first_expert, int* choices) {
    constexpr int kIds = sizeof(int4) / sizeof(Index);
    const Index* const ids = topk_idx + static_cast<int64_t>(token) * args.top_k;
    bool any = false;
    const auto count = [&](Index id) {
        const int64_t local = static_cast<int64_t>(id) - first_expert;
        if (local < 0 || local >= args.notify.experts_per_rank) return;
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

// One destination, by a block. `choices` [experts_per_rank] and `warp_totals` are shared memory; the rest as in `layout`.
template <typename Index>
EP_DEVICE void route_to(int destination, const RouteArgs& args, const Index* topk_idx, int* slot, int* rank_counts,
                        int* expert_counts, int* choices, int* warp_totals) {
    const int experts = args.notify.experts_per_rank, first_expert = destination * experts;
    const int thread = thread_in_block(), num_threads = threads_in_block();
    for (int e = thread; e < experts; e += num_threads) choices[e] = 0;
    __syncthreads();

    // A warp takes consecutive tokens, kWarpSize of them a round; each lane remembers a bit a round.
    const int lane = lane_id();
    const unsigned lanes_below = (1u << lane) - 1;
    int before = 0;  // tokens for this destination in earlier spans
    for (int span = 0; span < args.num_tokens; span += kRouteRounds * num_threads) {
        const int rounds = (min(args.num_tokens - span, kRouteRounds * num_threads) + num_threads - 1) / num_threads;
        const int first = span + warp_id() * rounds * kWarpSize + lane;
        unsigned went = 0;
        int of_warp = 0;
        for (int round = 0; round < rounds; ++round) {
            const int token = first + round * kWarpSize;
            const bool goes = token < args.num_tokens && count_choices(args, topk_idx, token, first_expert, choices);
            went |= static_cast<unsigned>(goes) << round;
            of_warp += __popc(__ballot_sync(kFullWarp, goes));
        }
        int total = 0;
        int position = before + sum_of_lower_warps(of_warp, warp_totals, &total);
        before += total;
        for (int round = 0; round < rounds; ++round) {
            const int token = first + round * kWarpSize;
            const bool goes = went >> round & 1;
            const unsigned votes = __ballot_sync(kFullWarp, goes);
            if (token < args.num_tokens) {
                slot[static_cast<int64_t>(token) * num_ranks() + destination] =
                    goes ? position + __popc(votes & lanes_below) : -1;
            }
            position += __popc(votes);
        }
    }
    if (thread == 0) rank_counts[destination] = before;
    for (int e = thread; e < experts; e += num_threads) expert_counts[first_expert + e] = choices[e];
    __syncthreads();  // choices are cleared again
}

// Any grid up to a block a rank, any whole number of warps. Dynamic shared memory: an int a warp (kMaxWarps of them), an
// int for each expert of a rank. Arguments as in `layout` and `notify`; Index is int or long long.
template <typename Index>
EP_DEVICE void route(const RouteArgs& args, const Index* topk_idx, int* slot, int* rank_counts, int* expert_counts,
                     int* plan) {
    extern __shared__ int layout_shared[];
    for (int destination = blockIdx.x; destination < num_ranks(); destination += gridDim.x) {
        route_to(destination, args, topk_idx, slot, rank_counts, expert_counts, layout_shared + kMaxWarps,
                 layout_shared);
    }
    if (is_last_block(args.finished_blocks)) notify(args.notify, rank_counts, expert_counts, plan);
}

}  // namespace ep

// The capstone's kernels: a dispatch for small batches in one kernel, by one warp and by many, and a combine.
//
// 0     dispatch_one_warp  one warp tells, sends and receives everything, one token after the other
// 1     own_dispatch       all packets, then all rows, then receive, shared out among the warps of the grid
//       own_combine        a token's owner reads its experts' rows where they lie, in the order of its choices
//
// All of them call the functions of 09_own_dispatch.cuh, which are yours in the last exercise.
#include <09_own_dispatch.cuh>
#include <ep/pieces.cuh>

using namespace ep;

// The same functions, token by token. Launch it with one warp: nothing is shared out.
extern "C" __global__ void dispatch_one_warp(own::Dispatch my, const int4* x, const int* topk_idx) {
    for (int token = 0; token < my.max_tokens; ++token) {
        const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
        const bool exists = token < my.num_tokens;
        own::tell_warp(my, choices, exists ? my.top_k : 0, token);
        if (exists) {
            own::send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, my.top_k, token);
        }
    }
    for (int i = 0; i < num_ranks() * my.max_tokens; ++i) {
        uint64_t bits = 0;
        if (!own::receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
        if (lane_id() == 0) my.wanted[i] = bits;
    }
}

// Counts the rows that this rank sends: one for each rank that has one of a token's experts.
EP_DEVICE void count_rows(const own::Dispatch& my, const int* topk_idx) {
    const int first = blockIdx.x * threads_in_block() + thread_in_block(), step = gridDim.x * threads_in_block();
    for (int token = first; token < my.num_tokens; token += step) {
        uint64_t ranks = 0;
        for (int k = 0; k < my.top_k; ++k) {
            const int expert = topk_idx[static_cast<int64_t>(token) * my.top_k + k];
            if (expert >= 0) ranks |= 1ull << expert / my.experts_per_rank;
        }
        count_piece(kCountOwnRows, __popcll(ranks));
    }
}

extern "C" __global__ void own_dispatch(own::Dispatch my, const int4* x, const int* topk_idx) {
    own::dispatch(my, x, topk_idx);
    if constexpr (detail::kCountsPieces) count_rows(my, topk_idx);
}

// The experts' results lie in `made`, symmetric [experts_per_rank, ranks * max_tokens, columns], at the places of the
// rows in `out`. A warp per token adds up weight * row in the order of the choices. All ranks have met before.
extern "C" __global__ void own_combine(own::Dispatch my, float* made, const int* topk_idx, const float* topk_weights,
                                       float* sums, int columns) {
    const int warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < my.num_tokens; token += warps) {
        for (int column = lane_id(); column < columns; column += kWarpSize) {
            float sum = 0.0f;
            for (int k = 0; k < my.top_k; ++k) {
                const int64_t choice = static_cast<int64_t>(token) * my.top_k + k;
                const int expert = topk_idx[choice];
                if (expert < 0) continue;
                const int64_t row = static_cast<int64_t>(expert % my.experts_per_rank) * num_ranks() * my.max_tokens +
                                    own::slot_of(my, rank(), token);
                sum += topk_weights[choice] * peer_ptr(made, expert / my.experts_per_rank)[row * columns + column];
            }
            sums[static_cast<int64_t>(token) * columns + column] = sum;
        }
    }
}

// Copies a dispatch's rows from the receive area to the caller's own arrays.
//
// The kernel reads the number of rows from `plan`, so the host need not know it. Further rows of the arrays get ids and
// sources of -1 and weights of 0; their `x` and scales are left as they are. If the dispatch failed, or brought more
// rows than the arrays have, the arrays are filled with NaN or -1.
//
// Rows may be grouped by expert as well (<moe/direct/expert_rows.cuh>): each is read once and written to all its places.
#include <moe/common/failure.cuh>
#include <moe/direct/expert_rows.cuh>

namespace ep::direct {

struct CopyEpilogueArgs {
    const int4* rows;     // the receive area, as in DispatchArgs
    const float* scales;  // numbers of type Side
    const int* topk;
    const float* weights;
    const int2* source;
    const uint32_t* broken;  // see <moe/common/failure.cuh>
    int capacity;            // rows of the caller's arrays
    int row_vectors;
    int row_scales;  // of type Side
    int top_k;
    int experts_per_rank;
};

constexpr int kCopyVectors = 4;  // in flight per thread

// All threads of the grid copy `count` elements.
template <typename T, typename U>
EP_DEVICE void copy_all(U* target, const T* source, int64_t count) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * threads_in_block();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads_in_block() + thread_in_block(); i < count;
         i += threads) {
        target[i] = static_cast<U>(source[i]);
    }
}

template <typename T>
EP_DEVICE void fill_all(T* target, T value, int64_t begin, int64_t end) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * threads_in_block();
    for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * threads_in_block() + thread_in_block(); i < end;
         i += threads) {
        target[i] = value;
    }
}

EP_DEVICE void copy_rows(int4* target, const int4* source, int64_t vectors) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * threads_in_block();
    const int64_t mine = static_cast<int64_t>(blockIdx.x) * threads_in_block() + thread_in_block();
    for (int64_t first = mine; first < vectors; first += kCopyVectors * threads) {
        int4 loaded[kCopyVectors];
#pragma unroll
        for (int u = 0; u < kCopyVectors; ++u) {
            if (first + u * threads < vectors) loaded[u] = ld_nc_v4(source + first + u * threads);
        }
#pragma unroll
        for (int u = 0; u < kCopyVectors; ++u) {
            if (first + u * threads < vectors) st_na_v4(target + first + u * threads, loaded[u]);
        }
    }
}

// Sets all bits of scales, or of side rows of any width.
template <typename Side>
EP_DEVICE void spoil_scales(Side* scales, int64_t count) {
    if constexpr (sizeof(Side) == sizeof(float)) {
        fill_with_nan(scales, count * sizeof(Side), fillers_of_grid());
    } else if (scales) {
        fill_all(scales, static_cast<Side>(-1), 0, count);
    }
}

EP_DEVICE int64_t rows_received(const int* plan) {
    int64_t count = 0;
    for (int r = 0; r < num_ranks(); ++r) count += plan[num_ranks() + r];
    return count;
}

// Any grid. A target that is null is not written; all have `capacity` rows. False, the same in all threads of a block,
// if the dispatch failed or brought too many rows.
//   plan  as in `notify`
template <typename Index, typename Side>
EP_DEVICE bool copy_epilogue(const CopyEpilogueArgs& args, const int* plan, int4* x, Side* scales, Index* topk,
                             float* weights, int* src_rank, int* src_token) {
    const bool failed = block_is_failing(args.broken);
    const int64_t count = rows_received(plan), capacity = args.capacity, top_k = args.top_k;
    if (failed || count > capacity) {
        if (!failed && blockIdx.x == 0 && thread_in_block() == 0) {
            record_fault(kFaultRoom, {kPhaseDispatch, -1, -1}, count, capacity);
        }
        const Fillers fillers = fillers_of_grid();
        fill_with_nan(x, capacity * args.row_vectors * sizeof(int4), fillers);
        spoil_scales(scales, capacity * args.row_scales);
        fill_with_nan(topk, capacity * top_k * sizeof(Index), fillers);
        fill_with_nan(weights, capacity * top_k * sizeof(float), fillers);
        fill_with_nan(src_rank, capacity * sizeof(int), fillers);
        fill_with_nan(src_token, capacity * sizeof(int), fillers);
        return false;
    }
    if (x) copy_rows(x, args.rows, count * args.row_vectors);
    if (scales) copy_all(scales, reinterpret_cast<const Side*>(args.scales), count * args.row_scales);
    if (topk) {
        copy_all(topk, args.topk, count * top_k);
        fill_all(topk, static_cast<Index>(-1), count * top_k, capacity * top_k);
    }
    if (weights) {
        copy_all(weights, args.weights, count * top_k);
        fill_all(weights, 0.0f, count * top_k, capacity * top_k);
    }
    if (src_rank) {
        const int stride = gridDim.x * threads_in_block();
        for (int i = blockIdx.x * threads_in_block() + thread_in_block(); i < capacity; i += stride) {
            const int2 source = i < count ? args.source[i] : make_int2(-1, -1);
            src_rank[i] = source.x;
            src_token[i] = source.y;
        }
    }
    return true;
}

// The same, and rows grouped by expert. Any whole number of warps; dynamic shared memory: expert_rows_shared.
template <typename Index, typename Side>
EP_DEVICE void copy_by_expert(const CopyEpilogueArgs& args, const ExpertRowsArgs& by, const int* plan, int4* x,
                              Side* scales, Index* topk, float* weights, int* src_rank, int* src_token) {
    extern __shared__ int expert_shared[];
    const int64_t choices = static_cast<int64_t>(args.capacity) * args.top_k;
    const Side* const side = reinterpret_cast<const Side*>(args.scales);
    const int* const tokens = plan + 3 * num_ranks();
    int* const next = expert_shared;
    const int experts = by.experts_per_rank;
    detail::find_begins(next, tokens, experts);
    if (!copy_epilogue<Index, Side>(args, plan, nullptr, nullptr, topk, weights, src_rank, src_token)) {
        const Fillers fillers = fillers_of_grid();
        fill_with_nan(x, static_cast<int64_t>(args.capacity) * args.row_vectors * sizeof(int4), fillers);
        spoil_scales(scales, static_cast<int64_t>(args.capacity) * args.row_scales);
        fill_with_nan(by.x, by.all * args.row_vectors * sizeof(int4), fillers);
        spoil_scales(static_cast<Side*>(by.scales), by.all * args.row_scales);
        fill_with_nan(by.weights, by.all * sizeof(float), fillers);
        if (by.placed) return;
        fill_with_nan(by.slot, choices * sizeof(int), fillers);
        fill_with_nan(by.row, by.all * sizeof(int), fillers);
        fill_with_zeros(by.offsets, by.experts_per_rank + 1, fillers);
        return;
    }
    const int count = static_cast<int>(rows_received(plan));
    const BlockRows rows = rows_of_block(count);
    detail::pad_experts<Side>(by, next, tokens + experts + 1, args.row_vectors, args.row_scales);
    __syncthreads();  // the next round changes `next`
    detail::place_choices(by, args.topk, args.weights, args.top_k, rows, next, next + experts + 1);
    if (!by.placed) fill_all(by.slot, -1, static_cast<int64_t>(count) * args.top_k, choices);
    detail::scatter_rows(by, rows, args.rows, side, x, scales, args.row_vectors, args.row_scales, args.top_k);
}

}  // namespace ep::direct

template <typename Index, typename Side = float>
__global__ void __launch_bounds__(512)
    ep_copy_epilogue(ep::direct::CopyEpilogueArgs args, const int* plan, int4* x, Side* scales, Index* topk,
                     float* weights, int* src_rank, int* src_token) {
    ep::direct::copy_epilogue<Index, Side>(args, plan, x, scales, topk, weights, src_rank, src_token);
}

template <typename Index, typename Side = float>
__global__ void __launch_bounds__(512)
    ep_copy_by_expert(ep::direct::CopyEpilogueArgs args, ep::direct::ExpertRowsArgs by, const int* plan, int4* x,
                      Side* scales, Index* topk, float* weights, int* src_rank, int* src_token) {
    ep::direct::copy_by_expert<Index, Side>(args, by, plan, x, scales, topk, weights, src_rank, src_token);
}

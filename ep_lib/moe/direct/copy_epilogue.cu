// What a dispatch brought, from the receive area to arrays of the caller's own.
//
// How many rows came is read from `plan` on the device, so the host need not know. Rows of the arrays behind them get
// ids and sources of -1 and weights of 0; their `x` and scales are left as they are. If the dispatch failed, or brought more
// rows than the arrays have, all that is in them is NaN or -1.
#include <moe/common/failure.cuh>

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

// Any grid. Each target may be null: nothing is copied then. All have `capacity` rows.
//   plan  as in `notify`
template <typename Index, typename Side>
EP_DEVICE void copy_epilogue(const CopyEpilogueArgs& args, const int* plan, int4* x, Side* scales, Index* topk,
                             float* weights, int* src_rank, int* src_token) {
    const bool failed = block_is_failing(args.broken);
    int64_t count = 0;
    for (int r = 0; r < num_ranks(); ++r) count += plan[num_ranks() + r];
    const int64_t capacity = args.capacity, top_k = args.top_k;
    if (failed || count > capacity) {
        if (!failed && blockIdx.x == 0 && thread_in_block() == 0) {
            record_fault(kFaultRoom, {kPhaseDispatch, -1, -1}, count, capacity);
        }
        const Fillers fillers = fillers_of_grid();
        fill_with_nan(x, capacity * args.row_vectors * sizeof(int4), fillers);
        if constexpr (sizeof(Side) == sizeof(float)) {
            fill_with_nan(scales, capacity * args.row_scales * sizeof(Side), fillers);
        } else if (scales) {
            fill_all(scales, static_cast<Side>(-1), 0, capacity * args.row_scales);
        }
        fill_with_nan(topk, capacity * top_k * sizeof(Index), fillers);
        fill_with_nan(weights, capacity * top_k * sizeof(float), fillers);
        fill_with_nan(src_rank, capacity * sizeof(int), fillers);
        fill_with_nan(src_token, capacity * sizeof(int), fillers);
        return;
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
}

}  // namespace ep::direct

template <typename Index, typename Side = float>
__global__ void __launch_bounds__(512)
    ep_copy_epilogue(ep::direct::CopyEpilogueArgs args, const int* plan, int4* x, Side* scales, Index* topk,
                     float* weights, int* src_rank, int* src_token) {
    ep::direct::copy_epilogue<Index, Side>(args, plan, x, scales, topk, weights, src_rank, src_token);
}

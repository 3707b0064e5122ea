// Rows grouped by expert, as a grouped GEMM wants them, and the way back.
//
// A row that several of this rank's experts chose is there once for each choice. The rows of an expert lie together in
// the order in which they were received, and each expert's part is padded to a multiple of the alignment with rows of
// zeros. `plan` (<moe/direct/notify_dispatch.cu>) has the counts, rounded up already, so no host is needed.
#include <moe/common/sums.cuh>
#include <moe/common/layout.cuh>

namespace ep::direct {

struct ExpertRowsArgs {
    const int* plan;
    int* slot;               // [capacity, top_k]: where each choice's row is, or -1
    int* row;                // [all]: which received row stands here, or -1
    int* offsets;            // [experts_per_rank + 1]: where each expert's rows begin
    float* weights;          // [all] or null: the choice's weight, 0 where there is none
    const uint32_t* broken;  // see <moe/common/failure.cuh>
    int all;                 // rows that there can be
    int capacity;            // received rows that arrays have room for
    int top_k;
    int experts_per_rank;
};

EP_DEVICE int rows_received(const int* plan, int capacity) {
    int count = 0;
    for (int r = 0; r < num_ranks(); ++r) count += plan[num_ranks() + r];
    return min(count, capacity);
}

// The sum of `value` over the lanes below this one, and over the warp.
EP_DEVICE int sum_of_lower_lanes(int value, int* total) {
    int sum = value;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int below = __shfl_up_sync(kFullWarp, sum, distance);
        if (lane_id() >= distance) sum += below;
    }
    *total = __shfl_sync(kFullWarp, sum, kWarpSize - 1);
    return sum - value;
}

// One block per expert, then the next. Any grid, any whole number of warps; shared memory: kMaxWarps ints.
//   topk          [capacity, top_k]   this rank's experts or -1, as received
//   topk_weights  [capacity, top_k] or null
template <typename Index>
EP_DEVICE void place_choices(const ExpertRowsArgs& args, const Index* topk, const float* topk_weights) {
    extern __shared__ int layout_shared[];
    if (block_is_failing(args.broken)) {
        const Fillers fillers = fillers_of_grid();
        fill_with_nan(args.slot, static_cast<int64_t>(args.capacity) * args.top_k * sizeof(int), fillers);
        fill_with_nan(args.row, static_cast<int64_t>(args.all) * sizeof(int), fillers);
        fill_with_nan(args.weights, static_cast<int64_t>(args.all) * sizeof(float), fillers);
        fill_with_zeros(args.offsets, args.experts_per_rank + 1, fillers);
        return;
    }
    const int* const tokens = args.plan + 3 * num_ranks();
    const int count = rows_received(args.plan, args.capacity), thread = thread_in_block();
    for (int expert = blockIdx.x; expert < args.experts_per_rank; expert += gridDim.x) {
        int before = 0;
        for (int e = 0; e < expert; ++e) before += tokens[e];
        const int end = before + tokens[expert];
        if (thread == 0) args.offsets[expert + 1] = end;
        if (thread == 0 && expert == 0) args.offsets[0] = 0;
        for (int first = 0; first < args.capacity; first += threads_in_block()) {
            const int received = first + thread;
            const Index* const ids = topk + static_cast<int64_t>(received) * args.top_k;
            int chosen = 0;
            for (int k = 0; k < args.top_k && received < count; ++k) chosen += ids[k] == expert;
            int of_warp = 0, of_block = 0;
            int target = sum_of_lower_lanes(chosen, &of_warp);
            target += before + sum_of_lower_warps(of_warp, layout_shared, &of_block);
            before += of_block;
            for (int k = 0; k < args.top_k && received < args.capacity; ++k) {
                const int64_t choice = static_cast<int64_t>(received) * args.top_k + k;
                if (received < count && ids[k] == expert) {
                    args.slot[choice] = target;
                    args.row[target] = received;
                    if (args.weights) args.weights[target] = topk_weights[choice];
                    ++target;
                } else if (expert == 0 && (received >= count || ids[k] < 0)) {
                    args.slot[choice] = -1;
                }
            }
        }
        for (int i = before + thread; i < end; i += threads_in_block()) {
            args.row[i] = -1;
            if (args.weights) args.weights[i] = 0.0f;
        }
    }
}

// Any grid, any whole number of warps; a warp takes a row. Rows after the last expert's are left as they are.
//   source  [rows received, row_vectors]       target  [all, row_vectors]
//   scales  [rows received, row_scales] or null, target_scales alike
//   padding  scales of rows of zeros
template <typename Side>
EP_DEVICE void expand_rows(const ExpertRowsArgs& args, const int4* source, int4* target, int row_vectors,
                           const Side* scales, Side* target_scales, int row_scales, Side padding) {
    if (block_is_failing(args.broken)) {
        fill_with_nan(target, static_cast<int64_t>(args.all) * row_vectors * sizeof(int4), fillers_of_grid());
        const int64_t all_scales = static_cast<int64_t>(args.all) * row_scales;
        if constexpr (sizeof(Side) == sizeof(float)) {
            fill_with_nan(target_scales, all_scales * sizeof(Side), fillers_of_grid());
        } else {
            const Fillers fillers = fillers_of_grid();
            for (int64_t i = fillers.index; i < all_scales; i += fillers.count)
                target_scales[i] = static_cast<Side>(-1);
        }
        return;
    }
    const int all = args.offsets[args.experts_per_rank], warps = gridDim.x * warps_in_block();
    for (int i = blockIdx.x * warps_in_block() + warp_id(); i < all; i += warps) {
        const int64_t from = args.row[i];
        int4* const to = target + static_cast<int64_t>(i) * row_vectors;
#pragma unroll 4
        for (int v = lane_id(); v < row_vectors; v += kWarpSize) {
            st_na_v4(to + v, from < 0 ? make_int4(0, 0, 0, 0) : ld_nc_v4(source + from * row_vectors + v));
        }
        for (int s = lane_id(); s < row_scales; s += kWarpSize) {
            target_scales[static_cast<int64_t>(i) * row_scales + s] =
                from < 0 ? padding : scales[from * row_scales + s];
        }
    }
}

// The way back: out[row] = sum over its choices of y[slot], in the order of k, in float32. Grid as above.
template <typename T>
EP_DEVICE void reduce_choices(const ExpertRowsArgs& args, const int4* y, int4* out, int row_vectors) {
    if (block_is_failing(args.broken)) return;  // the combine that comes next fails, too
    const int count = rows_received(args.plan, args.capacity), warps = gridDim.x * warps_in_block();
    for (int row = blockIdx.x * warps_in_block() + warp_id(); row < count; row += warps) {
        const int* const slots = args.slot + static_cast<int64_t>(row) * args.top_k;
        for (int v = lane_id(); v < row_vectors; v += kWarpSize) {
            Sums<T> sums;
            for (int k = 0; k < args.top_k; ++k) {
                if (slots[k] >= 0) sums.add(ld_nc_v4(y + static_cast<int64_t>(slots[k]) * row_vectors + v));
            }
            st_na_v4(out + static_cast<int64_t>(row) * row_vectors + v, sums.rounded());
        }
    }
}

}  // namespace ep::direct

template <typename Index>
__global__ void __launch_bounds__(512)
    ep_place_choices(ep::direct::ExpertRowsArgs args, const Index* topk, const float* topk_weights) {
    ep::direct::place_choices<Index>(args, topk, topk_weights);
}

template <typename Side>
__global__ void __launch_bounds__(512)
    ep_expand_rows(ep::direct::ExpertRowsArgs args, const int4* source, int4* target, int row_vectors,
                   const Side* scales, Side* target_scales, int row_scales, Side padding) {
    ep::direct::expand_rows<Side>(args, source, target, row_vectors, scales, target_scales, row_scales, padding);
}

template <typename T>
__global__ void __launch_bounds__(512)
    ep_reduce_choices(ep::direct::ExpertRowsArgs args, const int4* y, int4* out, int row_vectors) {
    ep::direct::reduce_choices<T>(args, y, out, row_vectors);
}

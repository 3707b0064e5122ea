// Combine: every token collects what its experts made of it and adds it up, always in the same order.
//
// Two kernels. `stage` copies this rank's rows to symmetric memory and meets the others; `combine` then reads each
// token's rows from the ranks that hold them. The order is ascending ranks and the sum is float32, rounded once, so
// that results are equal bit for bit from run to run, whatever the timing.
#pragma once
#include <ep/layout.cuh>
#include <ep/notify.cuh>

#include <cuda_bf16.h>

namespace ep {

struct StageArgs {
    Signals signals;
    int4* rows;  // symmetric: the receive area, which this rank has emptied
    uint32_t* finished_blocks;
    uint64_t note;                // names the handle
    uint64_t previous_operation;  // the last combine: all must have read their rows of it
    int64_t num_vectors;          // to copy: rows * vectors a row
};

// Any grid. y [rows, row_vectors]; differs [ranks] as in compare_notes.
EP_DEVICE void stage(const StageArgs& args, const int4* y, int* differs) {
    if (block_has_fault()) return;
    if (!wait_for_all(args.signals, kSignalPulled, args.previous_operation, kPhaseCombine)) return;

    const int64_t stride = static_cast<int64_t>(gridDim.x) * threads_in_block();
    for (int64_t i = blockIdx.x * threads_in_block() + thread_in_block(); i < args.num_vectors; i += stride) {
        args.rows[i] = ld_nc_v4(y + i);
    }
    if (!is_last_block(args.finished_blocks)) return;
    signal_all(args.signals, kSignalStaged, args.note);
    if (wait_for_all(args.signals, kSignalStaged, args.signals.operation, kPhaseCombine)) {
        compare_notes(args.signals, kSignalStaged, args.note, differs);
    }
}

// 16 bytes as floats and back; the way back rounds to nearest even.
template <typename T>
struct Vector16;

template <>
struct Vector16<float> {
    static constexpr int kCount = 4;
    // Multiply, round, add, round: a fused multiply-add would round once, and NumPy could not check it bit for bit.
    static EP_DEVICE void add(float* sum, int4 v, float weight) {
        const int words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(weight, __int_as_float(words[i])));
    }
    static EP_DEVICE int4 round(const float* sum) {
        return make_int4(__float_as_int(sum[0]), __float_as_int(sum[1]), __float_as_int(sum[2]),
                         __float_as_int(sum[3]));
    }
};

template <>
struct Vector16<__nv_bfloat16> {
    static constexpr int kCount = 8;
    static EP_DEVICE void add(float* sum, int4 v, float weight) {
        const int words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // a bfloat16 is the upper half of a float
            const float low = __int_as_float(words[i] << 16), high = __int_as_float(words[i] & 0xffff0000);
            sum[2 * i] = __fadd_rn(sum[2 * i], __fmul_rn(weight, low));
            sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], __fmul_rn(weight, high));
        }
    }
    static EP_DEVICE int pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return __bfloat16_as_ushort(pair.x) | static_cast<int>(__bfloat16_as_ushort(pair.y)) << 16;
    }
    static EP_DEVICE int4 round(const float* sum) {
        return make_int4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7]));
    }
};

struct CombineArgs {
    Signals signals;
    int4* rows;  // symmetric: what `stage` wrote
    uint32_t* finished_blocks;
    int num_tokens;
    int row_vectors;
    int top_k;
    int experts_per_rank;
};

constexpr int kCombineRanks = 4;    // whose rows a lane has in flight together,
constexpr int kCombineVectors = 4;  // and vectors of each

// A token's weight on a rank: its weights there, added in float32 in the order of k.
EP_DEVICE float weight_on(const CombineArgs& args, int rank, int token, const int* topk_idx,
                          const float* topk_weights) {
    const int64_t first = static_cast<int64_t>(token) * args.top_k;
    float sum = 0.0f;
    for (int k = 0; k < args.top_k; ++k) {
        const int local = topk_idx[first + k] - rank * args.experts_per_rank;
        if (local >= 0 && local < args.experts_per_rank) sum = __fadd_rn(sum, topk_weights[first + k]);
    }
    return sum;
}

// Any grid, any whole number of warps; dynamic shared memory: one Place a warp and rank.
//   out   [num_tokens, row_vectors]     sum over a token's ranks of weight * row; zeros for a token without a rank
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
template <typename T>
EP_DEVICE void combine(const CombineArgs& args, int4* out, const int* topk_idx, const float* topk_weights,
                       const int* slot, const int* first_row) {
    extern __shared__ Place combine_places[];
    Place* const places = combine_places + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_places(places, token, slot, first_row, args.rows, args.row_vectors);
        if (topk_weights) {
            for (int p = lane_id(); p < found; p += kWarpSize) {
                places[p].weight = weight_on(args, places[p].rank, token, topk_idx, topk_weights);
            }
            __syncwarp();
        }
        int4* const target = out + static_cast<int64_t>(token) * args.row_vectors;
        for (int first = lane_id(); first < args.row_vectors; first += kCombineVectors * kWarpSize) {
            float sums[kCombineVectors][Vector16<T>::kCount] = {};
            for (int p = 0; p < found; p += kCombineRanks) {
                int4 vectors[kCombineRanks][kCombineVectors];
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) {
                        const int i = first + u * kWarpSize;
                        if (p + q < found && i < args.row_vectors) vectors[q][u] = ld_nc_v4(places[p + q].row + i);
                    }
                }
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
                    if (p + q >= found) break;
                    const float weight = places[p + q].weight;
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) Vector16<T>::add(sums[u], vectors[q][u], weight);
                }
            }
#pragma unroll
            for (int u = 0; u < kCombineVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < args.row_vectors) st_na_v4(target + i, Vector16<T>::round(sums[u]));
            }
        }
    }

    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

}  // namespace ep

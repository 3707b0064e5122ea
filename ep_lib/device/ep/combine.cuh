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

    int4* const rows = args.rows;
    const int64_t num_vectors = args.num_vectors, stride = static_cast<int64_t>(gridDim.x) * threads_in_block();
    for (int64_t i = blockIdx.x * threads_in_block() + thread_in_block(); i < num_vectors; i += stride) {
        st_na_v4(rows + i, ld_nc_v4(y + i));
    }
    if (!is_last_block(args.finished_blocks)) return;
    signal_all(args.signals, kSignalStaged, args.note);
    if (wait_for_all(args.signals, kSignalStaged, args.signals.operation, kPhaseCombine)) {
        compare_notes(args.signals, kSignalStaged, args.note, differs);
    }
}

// Multiply, round, add, round: a fused multiply-add would round once, and NumPy could not check it bit for bit.
EP_DEVICE float add_weighted(float sum, float weight, float value) { return __fadd_rn(sum, __fmul_rn(weight, value)); }

// The sums of as many elements of T as 16 bytes hold, in float32. `rounded` rounds them to nearest even.
template <typename T>
struct Sums;

template <>
struct Sums<float> {
    float sums[4] = {};
    EP_DEVICE void add(int4 v, float weight) {
        sums[0] = add_weighted(sums[0], weight, __int_as_float(v.x));
        sums[1] = add_weighted(sums[1], weight, __int_as_float(v.y));
        sums[2] = add_weighted(sums[2], weight, __int_as_float(v.z));
        sums[3] = add_weighted(sums[3], weight, __int_as_float(v.w));
    }
    EP_DEVICE void add(int4 v) {
        sums[0] = __fadd_rn(sums[0], __int_as_float(v.x));
        sums[1] = __fadd_rn(sums[1], __int_as_float(v.y));
        sums[2] = __fadd_rn(sums[2], __int_as_float(v.z));
        sums[3] = __fadd_rn(sums[3], __int_as_float(v.w));
    }
    EP_DEVICE int4 rounded() const {
        return make_int4(__float_as_int(sums[0]), __float_as_int(sums[1]), __float_as_int(sums[2]),
                         __float_as_int(sums[3]));
    }
};

template <>
struct Sums<__nv_bfloat16> {
    float low[4] = {}, high[4] = {};  // of the two elements in each 32-bit word
    EP_DEVICE void add(int4 v, float weight) {
        add_word(0, v.x, weight);
        add_word(1, v.y, weight);
        add_word(2, v.z, weight);
        add_word(3, v.w, weight);
    }
    EP_DEVICE void add(int4 v) {
        add_word(0, v.x);
        add_word(1, v.y);
        add_word(2, v.z);
        add_word(3, v.w);
    }
    EP_DEVICE int4 rounded() const {
        return make_int4(rounded_word(0), rounded_word(1), rounded_word(2), rounded_word(3));
    }

  private:
    EP_DEVICE void add_word(int i, int word, float weight) {  // a bfloat16 is the upper half of a float
        low[i] = add_weighted(low[i], weight, __int_as_float(word << 16));
        high[i] = add_weighted(high[i], weight, __int_as_float(word & 0xffff0000));
    }
    EP_DEVICE void add_word(int i, int word) {
        low[i] = __fadd_rn(low[i], __int_as_float(word << 16));
        high[i] = __fadd_rn(high[i], __int_as_float(word & 0xffff0000));
    }
    EP_DEVICE int rounded_word(int i) const {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low[i], high[i]);
        return __bfloat16_as_ushort(pair.x) | static_cast<int>(__bfloat16_as_ushort(pair.y)) << 16;
    }
};

// Up to two arrays [num_tokens, row_vectors] that a sum begins with; null where there is none.
struct Bias {
    const int4* first;
    const int4* second;  // only with `first`
};

template <typename T>
EP_DEVICE void add_bias(Sums<T>& sums, const Bias& bias, int64_t i) {
    sums.add(ld_nc_v4(bias.first + i));
    if (bias.second) sums.add(ld_nc_v4(bias.second + i));
}

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
EP_DEVICE float weight_on(int top_k, int experts_per_rank, int rank, int token, const int* topk_idx,
                          const float* topk_weights) {
    const int64_t first = static_cast<int64_t>(token) * top_k;
    float sum = 0.0f;
    for (int k = 0; k < top_k; ++k) {
        const int local = topk_idx[first + k] - rank * experts_per_rank;
        if (local >= 0 && local < experts_per_rank) sum = __fadd_rn(sum, topk_weights[first + k]);
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

    const int row_vectors = args.row_vectors, num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_places(places, token, slot, first_row, args.rows, row_vectors);
        if (topk_weights) {
            for (int p = lane_id(); p < found; p += kWarpSize) {
                places[p].weight =
                    weight_on(args.top_k, args.experts_per_rank, places[p].rank, token, topk_idx, topk_weights);
            }
            __syncwarp();
        }
        int4* const target = out + static_cast<int64_t>(token) * row_vectors;
        for (int first = lane_id(); first < row_vectors; first += kCombineVectors * kWarpSize) {
            Sums<T> sums[kCombineVectors];
            for (int p = 0; p < found; p += kCombineRanks) {
                int4 vectors[kCombineRanks][kCombineVectors];
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) {
                        const int i = first + u * kWarpSize;
                        if (p + q < found && i < row_vectors) vectors[q][u] = ld_nc_v4(places[p + q].row + i);
                    }
                }
#pragma unroll
                for (int q = 0; q < kCombineRanks; ++q) {
                    if (p + q >= found) break;
                    const float weight = places[p + q].weight;
#pragma unroll
                    for (int u = 0; u < kCombineVectors; ++u) sums[u].add(vectors[q][u], weight);
                }
            }
#pragma unroll
            for (int u = 0; u < kCombineVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) st_na_v4(target + i, sums[u].rounded());
            }
        }
    }

    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

}  // namespace ep

// The arithmetic of combine: sums in float32, in ascending order of ranks, rounded once, so that results are equal bit
// for bit from run to run, whatever the timing. The kernels of each mode bring the rows;
// tutorial_kernels/07_combine.cu has the simple kernels that the course begins with.
#pragma once
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

#include <cuda_bf16.h>

namespace ep {

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

constexpr int kCombineRanks = 4;    // whose rows a lane has in flight together,
constexpr int kCombineVectors = 4;  // and vectors of each

// The sums of one token's rows, in the columns of thread `first` of `step` threads that work together.
//   row_ptrs  [found]   where the rows are, in the order in which they are added
template <typename T>
EP_DEVICE void add_rows(int4* out, const RowPtr* row_ptrs, int found, int row_vectors, int first, int step) {
    for (int i = first; i < row_vectors; i += step) {
        Sums<T> sums;
        for (int p = 0; p < found; p += kCombineRanks) {
            int4 vectors[kCombineRanks];
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
                if (p + q < found) vectors[q] = ld_na_v4(row_ptrs[p + q].row + i);
            }
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
                if (p + q < found) sums.add(vectors[q], row_ptrs[p + q].weight);
            }
        }
        st_na_v4(out + i, sums.rounded());
    }
}

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

}  // namespace ep

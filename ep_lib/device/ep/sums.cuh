// The arithmetic of combine: sums in float32, rounded once at the end, so that a result is equal to the last bit on every
// run, and NumPy can check it.
//
// In which order rows are added is the business of the kernels that bring them: in ascending order of ranks, whatever the
// timing. Each thread calls these functions for itself. Exercise 07_sums lets you write them yourself.
#pragma once
#include <ep/platform.cuh>

#include <cuda_bf16.h>

namespace ep {

// Multiply, round, add, round: a fused multiply-add would round once, and NumPy could not check it bit for bit.
EP_DEVICE float add_weighted(float sum, float weight, float value) {
    // No compiler joins these two.
    return __fadd_rn(sum, __fmul_rn(weight, value));
}

// A 32-bit word of a row holds two bfloat16 numbers, the first one in its lower half. Each as a float32.
EP_DEVICE float bfloat16_low(int word) {
    // Its bits are the upper half of a float32.
    return __int_as_float(word << 16);
}
EP_DEVICE float bfloat16_high(int word) {
    // In its place already.
    return __int_as_float(word & 0xffff0000);
}

// The way back: two float32 numbers as one word of bfloat16, each rounded to the nearest, ties to even.
EP_DEVICE int bfloat16_word(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return __bfloat16_as_ushort(pair.x) | static_cast<int>(__bfloat16_as_ushort(pair.y)) << 16;
}

// A token's weight on a rank: the weights of its experts there, added in float32 in the order of k. Expert e lives on rank
// e / experts_per_rank; -1 is none.
//   topk_idx, topk_weights  [num_tokens, top_k]
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
        return make_int4(bfloat16_word(low[0], high[0]), bfloat16_word(low[1], high[1]), bfloat16_word(low[2], high[2]),
                         bfloat16_word(low[3], high[3]));
    }

  private:
    EP_DEVICE void add_word(int i, int word, float weight) {
        low[i] = add_weighted(low[i], weight, bfloat16_low(word));
        high[i] = add_weighted(high[i], weight, bfloat16_high(word));
    }
    EP_DEVICE void add_word(int i, int word) {
        low[i] = __fadd_rn(low[i], bfloat16_low(word));
        high[i] = __fadd_rn(high[i], bfloat16_high(word));
    }
};

}  // namespace ep

// Exercise 07_sums, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (2 points): a product joins a sum
    // sum + weight * value may become one fused multiply-add, which rounds once: more exact, and another number
    // than everybody else gets. __fmul_rn and __fadd_rn round each for itself, and no compiler joins them.
    assert(!"Task 1 is still to do: a product joins a sum");
    return 0.0f;
    // end of TASK 1
}

// A 32-bit word of a row holds two bfloat16 numbers, the first one in its lower half. Each as a float32.
EP_DEVICE float bfloat16_low(int word) {
    // TASK 2a (3 points for 2a and 2b together): bfloat16 to float32
    // A bfloat16 is the upper half of a float32. So its bits need to move, and nothing is computed:
    // __int_as_float(bits).
    assert(!"Task 2a is still to do: bfloat16 to float32");
    return 0.0f;
    // end of TASK 2a
}
EP_DEVICE float bfloat16_high(int word) {
    // TASK 2b (3 points for 2a and 2b together): bfloat16 to float32
    // This one is in its place already. What lies below it must go.
    assert(!"Task 2b is still to do: bfloat16 to float32");
    return 0.0f;
    // end of TASK 2b
}

// The way back: two float32 numbers as one word of bfloat16, each rounded to the nearest, ties to even.
EP_DEVICE int bfloat16_word(float low, float high) {
    // TASK 3 (3 points): float32 to bfloat16, rounded once
    // To cut off the lower half rounds toward zero: every sum would come out a little too small.
    // __floats2bfloat162_rn(a, b) rounds both to the nearest, ties to even, and leaves NaN a NaN. Its members x
    // and y are the two; __bfloat16_as_ushort gives 16 bits. Mind that a ushort with its highest bit set becomes
    // negative if it is shifted as an int and then widened.
    assert(!"Task 3 is still to do: float32 to bfloat16, rounded once");
    return 0;
    // end of TASK 3
}

// A token's weight on a rank: the weights of its experts there, added in float32 in the order of k. Expert e lives on rank
// e / experts_per_rank; -1 is none.
//   topk_idx, topk_weights  [num_tokens, top_k]
EP_DEVICE float weight_on(int top_k, int experts_per_rank, int rank, int token, const int* topk_idx,
                          const float* topk_weights) {
    // TASK 4 (3 points): a token's weight on a rank
    // A token may have several experts on the rank: their weights are added, from k = 0 on, each addition
    // rounded (__fadd_rn). Which ids are on this rank? Careful with -1: in C++, -1 / experts_per_rank is 0.
    assert(!"Task 4 is still to do: a token's weight on a rank");
    return 0.0f;
    // end of TASK 4
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

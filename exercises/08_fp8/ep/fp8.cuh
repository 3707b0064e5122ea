// Exercise 08_fp8, version 1. Leave this line: ep_lib reads it.
// FP8 numbers with scales, bit for bit as ep_lib.reference.quantize_fp8 has them.
//
// 128 consecutive elements of a row share one float32 scale: their largest finite magnitude over 448, the largest E4M3
// number. An element is x / scale, rounded to nearest even; both divisions are IEEE's, since a reciprocal would
// sometimes be one unit off. Infinities and NaN become NaN and do not count towards the scale.
//
//     a lane      16 elements: two vectors of bfloat16 become one of FP8
//     8 lanes     128 elements: a group, one scale
//     a warp      512 elements at once, and again until the row ends
#pragma once
#include <ep/memory.cuh>

#include <cuda_fp8.h>

namespace ep {

constexpr int kFp8Group = 128;    // elements that share a scale
constexpr int kFp8Elements = 16;  // per lane
constexpr int kFp8LanesPerGroup = kFp8Group / kFp8Elements;
constexpr float kFp8Max = 448.0f;
constexpr float kFp8LeastScale = 1.17549435e-38f;  // the smallest normal float32
constexpr float kFp8LargestFloat = 3.402823466e+38f;

// The 8 bfloat16 numbers of a vector as float32: bfloat16 is the upper half of a float32.
EP_DEVICE void bfloat16_to_float(int4 v, float* out) {
    const int words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __int_as_float(words[i] << 16);
        out[2 * i + 1] = __int_as_float(words[i] & 0xffff0000);
    }
}

// The largest finite magnitude of a group, in all of its lanes; 0 if there is none. All 32 lanes of a warp call, whatever
// other warps do, each with its kFp8Elements numbers.
EP_DEVICE float fp8_group_largest(const float* values) {
    // TASK 1 (3 points): the largest number of a group
    // First among this lane's kFp8Elements numbers, then among the lanes. Lanes 0 to 7 hold one group, 8 to 15
    // the next: __shfl_xor_sync(kFullWarp, largest, step) gives the number of the lane whose number differs in
    // the bit `step`. Which steps stay within eight lanes? Magnitudes count, not signs; what is not finite
    // (larger than kFp8LargestFloat, or NaN, which compares false with everything) does not count at all.
    assert(!"Task 1 is still to do: the largest number of a group");
    return 0.0f;
    // end of TASK 1
}

// The scale of a group with this largest magnitude: 1 where that would not be a normal float32, as for a group of
// zeros.
EP_DEVICE float fp8_scale(float largest) {
    // TASK 2 (2 points): its scale
    // The largest number becomes kFp8Max: which factor makes it so when we multiply back? Divide by __fdiv_rn,
    // which rounds as IEEE says. And if the result is below kFp8LeastScale, for instance because all numbers are
    // zeros?
    assert(!"Task 2 is still to do: its scale");
    return 0.0f;
    // end of TASK 2
}

// Two numbers as two E4M3 bytes, the first one in the lower byte.
EP_DEVICE unsigned fp8_pair(float first, float second, float scale) {
    // TASK 3 (3 points): two numbers become two bytes
    // Each number over the scale, by __fdiv_rn: to multiply by 1 / scale is faster, and rounds twice. Then
    // __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3) gives 16 bits, a in the lower byte.
    // It turns what is too large into 448, infinity as well; we want NaN (__int_as_float(0x7fffffff)) for
    // everything that is not finite, so that a broken number stays one.
    assert(!"Task 3 is still to do: two numbers become two bytes");
    return 0;
    // end of TASK 3
}

// Casts 16 consecutive bfloat16 elements per lane, and gives each lane the scale of its group. All lanes of a warp
// call.
EP_DEVICE int4 quantize_fp8(int4 first, int4 second, float* scale) {
    // TASK 4 (2 points): sixteen elements per lane
    // bfloat16_to_float makes 8 numbers of a vector. `first` holds this lane's elements 0 to 7, `second` 8 to
    // 15. The result's byte i is element i, so v.x holds elements 0 to 3, the first in its lowest byte.
    assert(!"Task 4 is still to do: sixteen elements per lane");
    *scale = 0.0f;
    return {};
    // end of TASK 4
}

// A warp casts a row of `hidden` bfloat16 elements, a multiple of 128, to `numbers` [hidden] and `scales` [hidden / 128],
// which may be a peer's. All lanes call.
EP_DEVICE void quantize_row_warp(const int4* row, int4* numbers, float* scales, int hidden) {
    // TASK 5 (3 points): a warp casts a row
    // Lane l takes vectors 2 i and 2 i + 1 of the row (ld_nc_v4) for i = l, l + 32, ..., and stores vector i of
    // `numbers` (st_na_v4). There are hidden / 16 of these, so at the end of a row some lanes have nothing to
    // do. But quantize_fp8 has shuffles of the whole warp in it: who must call it? And who stores the scale that
    // eight lanes hold?
    assert(!"Task 5 is still to do: a warp casts a row");
    // end of TASK 5
}

}  // namespace ep

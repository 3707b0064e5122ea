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
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kFp8Elements; ++i) {
        const float magnitude = fabsf(values[i]);
        if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
    }
#pragma unroll
    for (int step = 1; step < kFp8LanesPerGroup; step *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    return largest;
}

// The scale of a group with this largest magnitude: 1 where that would not be a normal float32, as for a group of
// zeros.
EP_DEVICE float fp8_scale(float largest) {
    const float scale = __fdiv_rn(largest, kFp8Max);
    return scale < kFp8LeastScale ? 1.0f : scale;
}

// Two numbers as two E4M3 bytes, the first one in the lower byte.
EP_DEVICE unsigned fp8_pair(float first, float second, float scale) {
    const auto divided = [scale](float value) {  // an infinity would be rounded to 448
        return fabsf(value) <= kFp8LargestFloat ? __fdiv_rn(value, scale) : __int_as_float(0x7fffffff);
    };
    return __nv_cvt_float2_to_fp8x2(make_float2(divided(first), divided(second)), __NV_SATFINITE, __NV_E4M3);
}

// Casts 16 consecutive bfloat16 elements per lane, and gives each lane the scale of its group. All lanes of a warp
// call.
EP_DEVICE int4 quantize_fp8(int4 first, int4 second, float* scale) {
    float values[kFp8Elements];
    bfloat16_to_float(first, values);
    bfloat16_to_float(second, values + kFp8Elements / 2);
    *scale = fp8_scale(fp8_group_largest(values));
    int words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const float* const v = values + 4 * w;
        words[w] = static_cast<int>(fp8_pair(v[0], v[1], *scale) | fp8_pair(v[2], v[3], *scale) << 16);
    }
    return make_int4(words[0], words[1], words[2], words[3]);
}

// A warp casts a row of `hidden` bfloat16 elements, a multiple of 128, to `numbers` [hidden] and `scales` [hidden / 128],
// which may be a peer's. All lanes call.
EP_DEVICE void quantize_row_warp(const int4* row, int4* numbers, float* scales, int hidden) {
    const int vectors = hidden / kFp8Elements;
    for (int base = 0; base < vectors; base += kWarpSize) {
        const int i = base + lane_id();
        int4 first = {}, second = {};  // lanes beyond the end of the row take part with zeros
        if (i < vectors) {
            first = ld_nc_v4(row + 2 * i);
            second = ld_nc_v4(row + 2 * i + 1);
        }
        float scale;
        const int4 v = quantize_fp8(first, second, &scale);
        if (i < vectors) {
            st_na_v4(numbers + i, v);
            if (i % kFp8LanesPerGroup == 0) scales[i / kFp8LanesPerGroup] = scale;
        }
    }
}

}  // namespace ep

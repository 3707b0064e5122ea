// FP8 numbers with scales, bit for bit as ep_lib.reference.quantize_fp8 has them.
//
// 128 consecutive elements of a row share one float32 scale: their largest finite magnitude over 448, the largest E4M3
// number. An element is x / scale, rounded to nearest even; both divisions are IEEE's, since a reciprocal would now and
// then be one unit off. Infinities and NaN become NaN.
#pragma once
#include <ep/platform.cuh>

#include <cuda_fp8.h>

namespace ep {

constexpr int kFp8Group = 128;    // elements that share a scale
constexpr int kFp8Elements = 16;  // that a lane casts: two vectors of bfloat16 become one of FP8
constexpr float kFp8Max = 448.0f;
constexpr float kFp8LeastScale = 1.17549435e-38f;  // the smallest normal float32
constexpr float kFp8LargestFloat = 3.402823466e+38f;

namespace detail {

EP_DEVICE void bfloat16_to_float(int4 v, float* out) {
    const int words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __int_as_float(words[i] << 16);
        out[2 * i + 1] = __int_as_float(words[i] & 0xffff0000);
    }
}

EP_DEVICE float fp8_quotient(float value, float scale) {
    return fabsf(value) <= kFp8LargestFloat ? __fdiv_rn(value, scale) : __int_as_float(0x7fffffff);
}

}  // namespace detail

// Casts 16 consecutive bfloat16 elements a lane; the 8 lanes that hold a group get its scale. All lanes of a warp call.
EP_DEVICE int4 quantize_fp8(int4 first, int4 second, float* scale) {
    float values[kFp8Elements];
    detail::bfloat16_to_float(first, values);
    detail::bfloat16_to_float(second, values + 8);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kFp8Elements; ++i) {
        const float magnitude = fabsf(values[i]);
        if (magnitude <= kFp8LargestFloat) largest = fmaxf(largest, magnitude);
    }
#pragma unroll
    for (int step = 1; step < kFp8Group / kFp8Elements; step *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    float unit = __fdiv_rn(largest, kFp8Max);
    if (unit < kFp8LeastScale) unit = 1.0f;
    *scale = unit;
    int words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const float* const v = values + 4 * w;
        const float2 low = make_float2(detail::fp8_quotient(v[0], unit), detail::fp8_quotient(v[1], unit));
        const float2 high = make_float2(detail::fp8_quotient(v[2], unit), detail::fp8_quotient(v[3], unit));
        words[w] = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3) |
                   static_cast<int>(__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3)) << 16;
    }
    return make_int4(words[0], words[1], words[2], words[3]);
}

}  // namespace ep

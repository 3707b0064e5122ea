// Rows of bfloat16 cast to few bits with scales, in place, bit for bit as ep_lib.reference.quantize has them.
//
//     Cast      numbers  elements per scale   scale                      side row (bytes)
//     kFp8      E4M3     128                  float32, largest / 448     hidden / 32
//     kUe8m0    E4M3     128                  UE8M0, a power of two      hidden / 128
//     kMxfp8    E4M3     32                   UE8M0                      hidden / 32
//     kNvfp4    E2M1     16                   E4M3, times the row's      16 + hidden / 16, to a multiple of 16
//
// A lane casts 16 elements: two vectors of bfloat16 become one vector of E4M3, or half a vector of E2M1. So a warp's
// reads stay ahead of its writes, and the cast needs no second buffer.
#pragma once
#include <ep/fp8.cuh>

#include <cuda_bf16.h>

namespace ep {

enum class Cast { kFp8, kUe8m0, kMxfp8, kNvfp4 };

constexpr int kMxfp8LanesPerGroup = 2;
constexpr float kFp4Max = 6.0f;              // the largest E2M1 number
constexpr int kNvfp4RowScaleBytes = 16;      // of a side row, before the blocks' scales: a float32, and zeros
constexpr int kCastElements = kFp8Elements;  // per lane
constexpr int kInfinityBits = 0x7f800000;
constexpr unsigned kE8m0One = 127;  // the byte of 2 ** 0
constexpr unsigned kE4m3Nan = 0x7f;

// The byte of the smallest power of two by which `largest`, divided, is at most 448 = 1.75 * 2 ** 8: the exponent less
// 8, and one more where the fraction is above 1.75. A group of zeros gets 1.
EP_DEVICE unsigned e8m0_scale(float largest) {
    constexpr int kBelowNext = 0x1fffff;  // a fraction above 1.75 carries into the exponent
    const int bits = __float_as_int(largest);
    return bits == 0 ? kE8m0One : static_cast<unsigned>(max(((bits + kBelowNext) >> 23) - 8, 0));
}

// The power of two itself; 2 ** -127 has no exponent of its own.
EP_DEVICE float e8m0_value(unsigned scale) {
    return __int_as_float(scale == 0 ? 0x400000 : static_cast<int>(scale) << 23);
}

// 1 / scale, exact: bytes go up to 247.
EP_DEVICE float e8m0_inverse(unsigned scale) { return __int_as_float(static_cast<int>(254 - scale) << 23); }

// A lane's 16 elements.
struct CastElements {
    int words[kCastElements / 2];  // of two bfloat16

    EP_DEVICE float operator[](int n) const {
        return __int_as_float(n % 2 ? words[n / 2] & 0xffff0000 : words[n / 2] << 16);
    }
};

namespace detail {

EP_DEVICE int largest_over_lanes(int bits, int lanes) {
    for (int step = 1; step < lanes; step *= 2) bits = max(bits, __shfl_xor_sync(kFullWarp, bits, step));
    return bits;
}

}  // namespace detail

// The largest finite magnitude of kLanes lanes' numbers, returned in all of them; 0 if there is none. `*finite`: no
// lane of the warp has an infinity, though perhaps NaN. All lanes call.
template <int kLanes>
EP_DEVICE float largest_of_lanes(const CastElements& elements, bool* finite) {
    __nv_bfloat162 most = {};  // two at a time; __hmax2 prefers a number to NaN
#pragma unroll
    for (const int word : elements.words) {
        const int sizes = word & 0x7fff7fff;
        most = __hmax2(most, reinterpret_cast<const __nv_bfloat162&>(sizes));
    }
    int bits = __float_as_int(fmaxf(__low2float(most), __high2float(most)));
    *finite = __all_sync(kFullWarp, bits < kInfinityBits) != 0;
    if (!*finite) {
        bits = 0;  // the bits of magnitudes have the magnitudes' order
#pragma unroll
        for (int n = 0; n < kCastElements; ++n) {
            const int size = __float_as_int(elements[n]) & 0x7fffffff;
            if (size < kInfinityBits) bits = max(bits, size);
        }
    }
    return __int_as_float(detail::largest_over_lanes(bits, kLanes));
}

// a / b, equal to __fdiv_rn's, from `inverse`, the rounded 1 / b; without __fdiv_rn's slow path for zeros. For b >=
// kLeastDivisor, and for quotients that are then rounded to few bits: below 2 ** -30 they may be one unit off
// (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990: two corrections make
// it right).
constexpr float kLeastDivisor = 4.0e-28f;
EP_DEVICE float quotient(float a, float b, float inverse) {
    float q = __fmul_rn(a, inverse);
    q = __fmaf_rn(__fmaf_rn(-q, b, a), inverse, q);
    q = __fmaf_rn(__fmaf_rn(-q, b, a), inverse, q);
    return copysignf(q, a);
}

// `scaled`, or NaN if the value is an infinity, which the cast would round to 448.
EP_DEVICE float scaled_or_nan(float value, float scaled) {
    return fabsf(value) <= kFp8LargestFloat ? scaled : __int_as_float(0x7fffffff);
}

// A lane's elements as E4M3, rounded from scaled(value).
template <typename Scaled>
EP_DEVICE int4 fp8_of(const CastElements& elements, bool finite, const Scaled& scaled) {
    const auto pair = [&](int n) {
        float a = scaled(elements[n]), b = scaled(elements[n + 1]);
        if (!finite) a = scaled_or_nan(elements[n], a), b = scaled_or_nan(elements[n + 1], b);
        return static_cast<int>(__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3));
    };
    int words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = pair(4 * w) | pair(4 * w + 2) << 16;
    const int4 numbers = {words[0], words[1], words[2], words[3]};
    return numbers;
}

// The same with a power of two as the factor.
EP_DEVICE int4 fp8_times(const CastElements& elements, bool finite, float factor) {
    return fp8_of(elements, finite, [=](float value) { return __fmul_rn(value, factor); });
}

// The elements of lane i, from a row of 2 * lanes vectors; zeros for i >= lanes, so that all lanes can take part.
EP_DEVICE CastElements load_elements(const int4* row, int i, int lanes) {
    const int4 zeros = make_int4(0, 0, 0, 0);
    const int4 first = i < lanes ? row[2 * i] : zeros, second = i < lanes ? row[2 * i + 1] : zeros;
    return {{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}};
}

// The two E4M3 numbers in the lower half of `bytes`.
EP_DEVICE void fp8_pair_to_float(unsigned bytes, float* first, float* second) {
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes), __NV_E4M3);
    __half_raw low, high;
    low.x = halves.x;
    high.x = halves.y;
    *first = __half2float(__half(low));
    *second = __half2float(__half(high));
}

EP_DEVICE unsigned e4m3_byte(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }

// The value of a positive E4M3 number.
EP_DEVICE float e4m3_to_float(unsigned byte) {
    const int exponent = static_cast<int>(byte >> 3), fraction = static_cast<int>(byte & 7);
    if (exponent == 0) return static_cast<float>(fraction) * 0.001953125f;  // 2 ** -9
    return __int_as_float((exponent + 120) << 23 | fraction << 20);
}

// Four bits of an E2M1 number, rounded to nearest even, at most 6 in magnitude: sign, two bits of exponent, one of fraction.
EP_DEVICE unsigned e2m1_bits(float value) {
    const float size = fminf(fabsf(value), kFp4Max);
    const unsigned bits = __float_as_uint(size);
    const unsigned normal = ((bits + 0x1fffff + (bits >> 22 & 1)) >> 22) - 252;  // from 1 on: codes 2 to 7
    const unsigned small = (size > 0.25f) + (size >= 0.75f);                     // 0, 0.5, 1
    return (size < 1.0f ? small : normal) | (__float_as_uint(value) >> 31) << 3;
}

namespace detail {

// E4M3 with scales of either kind.
template <Cast kCast>
EP_DEVICE void cast_row_to_fp8(int4* row, void* side, int vectors) {
    constexpr int kLanes = kCast == Cast::kMxfp8 ? kMxfp8LanesPerGroup : kFp8LanesPerGroup;
    for (int begin = 0; begin < vectors; begin += kWarpSize) {
        const int mine = begin + lane_id();
        const CastElements elements = load_elements(row, mine, vectors);
        bool finite;
        const float largest = largest_of_lanes<kLanes>(elements, &finite);
        int4 numbers;
        if constexpr (kCast == Cast::kFp8) {
            const float scale = fp8_scale(largest);
            if (scale >= kLeastDivisor) {
                const float inverse = __frcp_rn(scale);
                numbers = fp8_of(elements, finite, [=](float value) { return quotient(value, scale, inverse); });
            } else {
                numbers = fp8_of(elements, finite, [=](float value) { return __fdiv_rn(value, scale); });
            }
            if (mine < vectors && mine % kLanes == 0) static_cast<float*>(side)[mine / kLanes] = scale;
        } else {
            const unsigned scale = e8m0_scale(largest);
            numbers = fp8_times(elements, finite, e8m0_inverse(scale));
            if (mine < vectors && mine % kLanes == 0)
                static_cast<uint8_t*>(side)[mine / kLanes] = static_cast<uint8_t>(scale);
        }
        __syncwarp();  // all lanes have read
        if (mine < vectors) row[mine] = numbers;
    }
}

// The largest finite magnitude of the whole row, in all lanes.
EP_DEVICE float row_largest(const int4* row, int vectors) {
    float largest = 0.0f;
    for (int begin = 0; begin < vectors; begin += kWarpSize) {
        bool finite;
        largest = fmaxf(largest, largest_of_lanes<1>(load_elements(row, begin + lane_id(), vectors), &finite));
    }
    return __int_as_float(largest_over_lanes(__float_as_int(largest), kWarpSize));
}

// A lane's 16 elements as a block: two words of E2M1, and the byte of its scale. All lanes call.
EP_DEVICE int2 cast_block_to_fp4(const CastElements& elements, float row_scale, unsigned* scale) {
    bool finite;
    const float largest = largest_of_lanes<1>(elements, &finite);
    int others = 0;  // infinities and NaN: exponents of ones carry into the sign
#pragma unroll
    for (const int word : elements.words) others |= ((word & 0x7fff7fff) + 0x00800080) & 0x80008000;
    *scale = others ? kE4m3Nan : e4m3_byte(__fdiv_rn(__fdiv_rn(largest, kFp4Max), row_scale));
    const float divisor = __fmul_rn(e4m3_to_float(*scale), row_scale);
    unsigned words[2] = {0, 0};
    if (others || divisor <= 0.0f) return make_int2(0, 0);
    if (divisor >= kLeastDivisor) {
        const float inverse = __frcp_rn(divisor);
#pragma unroll
        for (int n = 0; n < kCastElements; ++n)
            words[n / 8] |= e2m1_bits(quotient(elements[n], divisor, inverse)) << (n % 8 * 4);
    } else {
#pragma unroll
        for (int n = 0; n < kCastElements; ++n)
            words[n / 8] |= e2m1_bits(__fdiv_rn(elements[n], divisor)) << (n % 8 * 4);
    }
    return make_int2(static_cast<int>(words[0]), static_cast<int>(words[1]));
}

EP_DEVICE void cast_row_to_fp4(int4* row, void* side, int side_bytes, int vectors) {
    const float row_scale_of_largest = __fdiv_rn(row_largest(row, vectors), kFp4Max * kFp8Max);
    const float row_scale = row_scale_of_largest < kFp8LeastScale ? 1.0f : row_scale_of_largest;
    uint8_t* const scales = static_cast<uint8_t*>(side) + kNvfp4RowScaleBytes;
    int* const words = static_cast<int*>(side);
    if (lane_id() < kNvfp4RowScaleBytes / 4) words[lane_id()] = lane_id() == 0 ? __float_as_int(row_scale) : 0;
    for (int i = vectors + lane_id(); i < side_bytes - kNvfp4RowScaleBytes; i += kWarpSize) scales[i] = 0;
    int2* const halves = reinterpret_cast<int2*>(row);
    for (int begin = 0; begin < vectors; begin += kWarpSize) {
        const int mine = begin + lane_id();
        unsigned scale;
        const int2 numbers = cast_block_to_fp4(load_elements(row, mine, vectors), row_scale, &scale);
        __syncwarp();  // all lanes have read
        if (mine < vectors) {
            halves[mine] = numbers;
            scales[mine] = static_cast<uint8_t>(scale);
        }
    }
}

}  // namespace detail

// A warp casts a row in shared memory: `vectors` times 16 bfloat16 elements become numbers where they began, and
// `side_bytes` of scales at `side`, elsewhere. All lanes call; __syncwarp before lanes read what others wrote.
template <Cast kCast>
EP_DEVICE void cast_row_warp(int4* row, void* side, int side_bytes, int vectors) {
    if constexpr (kCast == Cast::kNvfp4) {
        detail::cast_row_to_fp4(row, side, side_bytes, vectors);
    } else {
        detail::cast_row_to_fp8<kCast>(row, side, vectors);
    }
}

}  // namespace ep

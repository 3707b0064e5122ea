// Rows of few bits and the side rows that travel with them: their scales, `row_scales` numbers of type Side each.
//
// A kernel is told by `Rows` what it sends:
//
//     Apart                     rows as the caller gave them; side rows of float, in memory of their own. FP8 with float32
//                               scales, and, with no side rows at all, rows of any other type
//     Behind<Side>              likewise, with side rows of any width: bytes, or words where they are whole ones
//     BehindWithRowScale<Side>  NVFP4 with a scale for each row: side rows begin with it
//
// All but Apart stand behind the rows of a receive area, which has room for twice as many bytes: it is made for bfloat16.
#pragma once
#include <ep/platform.cuh>

namespace ep::direct {

struct Apart {
    using Side = float;
    static constexpr bool kApart = true, kHasRowScale = false;
};

template <typename T>
struct Behind {
    using Side = T;
    static constexpr bool kApart = false, kHasRowScale = false;
};

template <typename T>
struct BehindWithRowScale {
    using Side = T;
    static constexpr bool kApart = false, kHasRowScale = true;
};

// A side row of NVFP4: the row's scale, 12 bytes of zeros, the blocks' scales, and zeros up to a multiple of 16 bytes.
constexpr int kRowScaleBytes = 16;
constexpr int kNvfp4BytesPerScale = 8;  // 16 numbers of 4 bits

// The number `i` of such a side row, from a token's row scale and its `count` scales.
template <typename Side>
EP_DEVICE Side with_row_scale(int i, const float* row_scale, const Side* scales, int count) {
    constexpr int kBefore = kRowScaleBytes / sizeof(Side), kScale = sizeof(float) / sizeof(Side);
    if (i < kScale) return reinterpret_cast<const Side*>(row_scale)[i];
    return i >= kBefore && i - kBefore < count ? scales[i - kBefore] : Side{};
}

}  // namespace ep::direct

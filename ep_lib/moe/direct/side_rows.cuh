// Rows of few bits and the side rows that travel with them: their scales, `row_scales` numbers of type Side each.
//
// The template argument `Rows` of a kernel says what it sends:
//
//     Apart                     rows as the caller gave them; side rows of float, in memory of their own. FP8 with float32
//                               scales, and, with no side rows at all, rows of any other type
//     Behind<Side>              likewise, with side rows of any width: bytes, or words where they are whole ones
//     BehindWithRowScale<Side>  NVFP4 with a scale for each row: side rows begin with it
//     CastTo<cast, Side>        rows of bfloat16, cast on their way (<ep/block_scales.cuh>)
//
// Side rows of all but Apart, and of FP8 with float32 scales, stand behind the rows of a receive area, which has room
// for rows of bfloat16: twice as many bytes.
#pragma once
#include <ep/block_scales.cuh>

namespace ep::direct {

struct Apart {
    using Side = float;
    static constexpr bool kApart = true, kHasRowScale = false, kCasts = false;
};

template <typename T>
struct Behind {
    using Side = T;
    static constexpr bool kApart = false, kHasRowScale = false, kCasts = false;
};

template <typename T>
struct BehindWithRowScale {
    using Side = T;
    static constexpr bool kApart = false, kHasRowScale = true, kCasts = false;
};

template <Cast kCast, typename T>
struct CastTo {
    using Side = T;
    static constexpr Cast kTo = kCast;
    static constexpr bool kApart = kCast == Cast::kFp8, kHasRowScale = false, kCasts = true;
    static constexpr int kShorter = kCast == Cast::kNvfp4 ? 4 : 2;  // bytes of bfloat16 / bytes of the cast
};

// A side row of NVFP4: the row's scale, 12 bytes of zeros, the blocks' scales, and zeros up to a multiple of 16 bytes.
constexpr int kNvfp4BytesPerScale = 8;  // 16 numbers of 4 bits

// A row in shared memory that is cast there: its side row, then the row of bfloat16, which becomes the shorter one.
constexpr int kSideAlignment = 8;  // vectors: rows should begin at multiples of 128 bytes

template <typename Rows>
EP_HOST_DEVICE int side_vectors(int row_scales) {
    if constexpr (Rows::kCasts) {
        constexpr int kBytes = kSideAlignment * sizeof(int4);
        return (row_scales * static_cast<int>(sizeof(typename Rows::Side)) + kBytes - 1) / kBytes * kSideAlignment;
    } else {
        return 0;
    }
}

template <typename Rows>
EP_HOST_DEVICE int loaded_vectors(int row_vectors) {
    if constexpr (Rows::kCasts) {
        return row_vectors * Rows::kShorter;
    } else {
        return row_vectors;
    }
}

// Number `i` of a side row with a row scale, from a token's row scale and its `count` scales.
template <typename Side>
EP_DEVICE Side with_row_scale(int i, const float* row_scale, const Side* scales, int count) {
    constexpr int kBefore = kNvfp4RowScaleBytes / sizeof(Side), kScale = sizeof(float) / sizeof(Side);
    if (i < kScale) return reinterpret_cast<const Side*>(row_scale)[i];
    return i >= kBefore && i - kBefore < count ? scales[i - kBefore] : Side{};
}

}  // namespace ep::direct

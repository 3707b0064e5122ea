// The few PTX statements of CUB's warp reductions and scans, as functions: shuffles whose control word names the lanes'
// segment, and the addition that follows where the source is in it.
#pragma once
#include <ep_emulator/warp.h>

namespace ep_emulator {

// shfl.sync of the PTX ISA: the source lane, and whether it is in the segment that `control` describes.
EPEMU_INLINE bool shuffle_lane(bool up, unsigned by, unsigned control, unsigned* source) {
    const unsigned lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
    const unsigned segment = control >> 8 & 31, last = (lane & segment) | (control & 31 & ~segment);
    const int from = up ? static_cast<int>(lane - by) : static_cast<int>(lane + by);
    const bool inside = up ? from >= static_cast<int>(last) : from <= static_cast<int>(last);
    *source = inside ? static_cast<unsigned>(from) : lane;
    return inside;
}

template <typename T>
EPEMU_INLINE T shuffle_and_add(bool up, T value, int by, int control, unsigned mask) {
    unsigned source;
    const bool inside = shuffle_lane(up, static_cast<unsigned>(by), static_cast<unsigned>(control), &source);
    const T other = __shfl_sync(mask, value, static_cast<int>(source));
    return inside ? other + value : value;
}

// `text` is the statement: "shfl.sync.up..." or "shfl.sync.down...".
EPEMU_INLINE unsigned shuffle_word(const char* text, unsigned word, int by, int control, unsigned mask) {
    unsigned source;
    shuffle_lane(__builtin_strstr(text, "sync.up") != nullptr, static_cast<unsigned>(by),
                 static_cast<unsigned>(control), &source);
    return __shfl_sync(mask, word, static_cast<int>(source));
}

}  // namespace ep_emulator

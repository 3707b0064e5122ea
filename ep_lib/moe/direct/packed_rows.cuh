// Rows of bfloat16 that are sent back as FP8: half the bytes, in chunks of 512 elements that can be read one by one.
//
//     a chunk     a vector with 4 scales (float32, powers of two), then 32 vectors with 16 numbers (E4M3) each; the last chunk
//                 of a row ends with the row
//
// Numbers and scales are those of ep_lib.reference.quantize_ue8m0: one scale for 128 elements. A number times its scale
// is exactly a bfloat16 number, so <ep/sums.cuh> adds them up like any others.
#pragma once
#include <ep/block_scales.cuh>
#include <ep/sums.cuh>

namespace ep::direct {

constexpr int kChunkVectors = 2 * kWarpSize;        // vectors of bfloat16 in a chunk: two per lane
constexpr int kPackedChunkVectors = kWarpSize + 1;  // vectors of the same chunk as FP8
constexpr int kCastsAtOnce = 4;                     // chunks: few warps send, and each cast waits for lanes and memory

// Vectors as FP8 of the first `vectors` vectors of a chunk; `vectors` is a multiple of 16, which are 128 elements.
EP_HOST_DEVICE int packed_vectors(int vectors) {
    const int rest = vectors % kChunkVectors;
    return vectors / kChunkVectors * kPackedChunkVectors + (rest > 0 ? 1 + rest / 2 : 0);
}

// A warp packs a row in shared memory, in place. All lanes call; __syncwarp before lanes read what others wrote.
EP_DEVICE void pack_row_warp(int4* row, int vectors) {
    const int lane = lane_id();
    for (int first = 0; first < vectors; first += kCastsAtOnce * kChunkVectors) {
        int4 numbers[kCastsAtOnce];
        unsigned scales[kCastsAtOnce];
#pragma unroll
        for (int u = 0; u < kCastsAtOnce; ++u) {
            const int begin = first + u * kChunkVectors;
            const CastElements elements = load_elements(row + begin, lane, (vectors - begin) / 2);
            bool finite;
            scales[u] = e8m0_scale(largest_of_lanes<kFp8LanesPerGroup>(elements, &finite));
            numbers[u] = fp8_times(elements, finite, e8m0_inverse(scales[u]));
        }
        __syncwarp();  // all lanes have read
#pragma unroll
        for (int u = 0; u < kCastsAtOnce; ++u) {
            const int begin = first + u * kChunkVectors;
            int4* const packed = row + begin / kChunkVectors * kPackedChunkVectors;
            if (begin < vectors && lane % kFp8LanesPerGroup == 0)
                reinterpret_cast<float*>(packed)[lane / kFp8LanesPerGroup] = e8m0_value(scales[u]);
            if (begin + 2 * lane < vectors) packed[1 + lane] = numbers[u];
        }
    }
}

// A lane's two vectors of bfloat16 out of a chunk.
EP_DEVICE void unpack_lane(const int4* chunk, int lane, int4* first, int4* second) {
    const int4 numbers = chunk[1 + lane];
    const float scale = reinterpret_cast<const float*>(chunk)[lane / kFp8LanesPerGroup];
    const int words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
    int out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float low, high;
        fp8_pair_to_float(static_cast<unsigned>(words[i / 2]) >> (i % 2 * 16), &low, &high);
        out[i] = bfloat16_word(__fmul_rn(low, scale), __fmul_rn(high, scale));
    }
    *first = make_int4(out[0], out[1], out[2], out[3]);
    *second = make_int4(out[4], out[5], out[6], out[7]);
}

}  // namespace ep::direct

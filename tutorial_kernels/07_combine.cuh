// What the rungs of 07_combine.cu share: the experts, who stand for two matrix products.
#pragma once
#include <ep/groups.cuh>
#include <ep/memory.cuh>
#include <ep/peer.cuh>

using namespace ep;

namespace {

EP_DEVICE int warp_in_grid() { return static_cast<int>(blockIdx.x) * warps_in_block() + warp_id(); }
EP_DEVICE int warps_in_grid() { return static_cast<int>(gridDim.x) * warps_in_block(); }

// Row `index` of an array of rows.
template <typename Row>
EP_DEVICE Row* row_of(Row* rows, int64_t index, int row_vectors) {
    return rows + index * row_vectors;
}

// Each row is multiplied by `factor`, and a group of rows takes `work_ns`.
// Rows of one source lie together, so they are cut into groups of consecutive rows of one source.
constexpr int kGroupRows = 4;

struct Experts {
    const int4* x;        // [rows, row_vectors], float32: what dispatch brought
    const int* received;  // [ranks]: how many of these rows came from each source
    int max_tokens;       // of a source
    int row_vectors;
    int work_ns;
    float factor;
};

EP_DEVICE int4 times(int4 v, float factor) {
    return make_int4(
        __float_as_int(__fmul_rn(__int_as_float(v.x), factor)), __float_as_int(__fmul_rn(__int_as_float(v.y), factor)),
        __float_as_int(__fmul_rn(__int_as_float(v.z), factor)), __float_as_int(__fmul_rn(__int_as_float(v.w), factor)));
}

// One warp does one group: `to` is where the group's first row goes. Returns how many rows there are; 0: no such group.
EP_DEVICE int do_group(const Experts& experts, int source, int group, int4* to) {
    const int begin = group * kGroupRows, rows = min(kGroupRows, experts.received[source] - begin);
    if (rows <= 0) return 0;
    int before = 0;  // rows of earlier sources
    for (int s = 0; s < source; ++s) before += experts.received[s];
    const int4* const x = row_of(experts.x, before + begin, experts.row_vectors);
    for (int i = lane_id(); i < rows * experts.row_vectors; i += kWarpSize) {
        st_na_v4(to + i, times(ld_nc_v4(x + i), experts.factor));
    }
    sleep_ns(experts.work_ns);
    return rows;
}

// Rung 4: the experts' rows on their way home.
struct Overlap {
    int4* returned;  // symmetric [ranks, max_tokens, row_vectors]: rows on their way home, by the rank they come from
    uint64_t* arrived;  // symmetric [ranks, groups]: the epoch of the last group that came
    uint64_t epoch;
    int expert_blocks;
    int num_tokens;
    int top_k;
    int experts_per_rank;
};

}  // namespace

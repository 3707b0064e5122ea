// Code that the rungs of 07_combine.cu share: the experts, which stand for two matrix products.
#pragma once
#include <ep/groups.cuh>
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <moe/common/sums.cuh>

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

// ---- Rung 4 ---------------------------------------------------------------------------------------------------------
struct Overlap {
    int4* returned;  // symmetric [ranks, max_tokens, row_vectors]: rows on their way home, by the rank they come from
    uint64_t* arrived;  // symmetric [ranks, groups]: the epoch of the last group that came
    uint64_t epoch;
    int expert_blocks;
    int num_tokens;
    int top_k;
    int experts_per_rank;
};

// The blocks that are no experts: a warp waits for the groups of its token, and for no others.
EP_DEVICE void add_up(const Experts& experts, const Overlap& args, int4* out, const int* topk_idx,
                      const float* topk_weights, const int* send_index) {
    const int groups = num_groups(experts.max_tokens, kGroupRows), vectors = experts.row_vectors;
    const int before = args.expert_blocks * warps_in_block(), warps = warps_in_grid() - before;
    for (int token = warp_in_grid() - before; token < args.num_tokens; token += warps) {
        const int* const places = send_index + token * num_ranks();
        bool here = true;
        for (int r = lane_id(); r < num_ranks(); r += kWarpSize)  // each lane waits for another rank
            if (places[r] >= 0) here &= wait_for_group(args.arrived, groups, places[r] / kGroupRows, r, args.epoch);
        if (!__all_sync(kFullWarp, here)) return;
        __syncwarp();  // what one lane has waited for, all may read
        for (int i = lane_id(); i < vectors; i += kWarpSize) {
            Sums<float> sums;
            for (int r = 0; r < num_ranks(); ++r) {  // the fixed order
                if (places[r] < 0) continue;
                const int4* const rows = row_of(args.returned, r * experts.max_tokens, vectors);
                const float weight = weight_on(args.top_k, args.experts_per_rank, r, token, topk_idx, topk_weights);
                sums.add(ld_na_v4(row_of(rows, places[r], vectors) + i), weight);
            }
            st_na_v4(row_of(out, token, vectors) + i, sums.rounded());
        }
    }
}

}  // namespace

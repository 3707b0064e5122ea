// A warp's knowledge of its current token and of the next one.
#pragma once
#include <moe/common/layout.cuh>

namespace ep::direct {
namespace detail {

// A number for each rank, lane by lane: rank = lane + 32 * index.
constexpr int kRanksPerLane = kMaxRanks / kWarpSize;
struct PerRank {
    int of[kRanksPerLane];
};

template <typename T>
EP_DEVICE PerRank load_per_rank(const T* values) {
    PerRank loaded;
#pragma unroll
    for (int i = 0; i < kRanksPerLane; ++i) {
        const int r = lane_id() + i * kWarpSize;
        loaded.of[i] = r < num_ranks() ? static_cast<int>(values[r]) : -1;
    }
    return loaded;
}

// A token whose row is on its way to shared memory.
struct OnItsWay {
    int token;
    PerRank send_indices;
};

// find_row_ptrs of <moe/common/layout.cuh> for send_indices that are loaded already. `areas`: by rank, the number of
// its receive area; each area has area_vectors vectors.
EP_DEVICE int list_row_ptrs(RowPtr* row_ptrs, const PerRank& send_indices, const PerRank& first_row, int4* rows,
                            int row_vectors, const PerRank& areas = {}, int64_t area_vectors = 0) {
    __syncwarp();  // all lanes have read the previous token's pointers
    int found = 0;
#pragma unroll
    for (int i = 0; i < kRanksPerLane; ++i) {
        const int r = lane_id() + i * kWarpSize;
        int rows_here;
        const int below = votes_below(send_indices.of[i] >= 0, &rows_here);
        if (send_indices.of[i] >= 0) {
            const int index = first_row.of[i] + send_indices.of[i];
            int4* const area = rows + areas.of[i] * area_vectors;
            row_ptrs[found + below] = {row_at(area, r, index, row_vectors), r, index, 1.0f, areas.of[i]};
        }
        found += rows_here;
    }
    __syncwarp();
    return found;
}

}  // namespace detail
}  // namespace ep::direct

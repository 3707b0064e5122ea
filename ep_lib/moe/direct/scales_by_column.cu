// Scales of rows by columns, as grouped GEMMs read them by TMA: target[column * stride + row] = scales[row * columns + column].
//
// The number of rows is the sum of `counts`, which earlier kernels wrote, so the host need not know it. Columns of the
// target have `stride` numbers, whole vectors of 16 bytes; numbers behind the rows are left as they are. Numbers are
// moved as unsigned integers of their size; after a failure all their bits are set: NaN, or -1.
#include <moe/common/failure.cuh>

namespace ep::direct {

struct ByColumnArgs {
    const uint32_t* broken;  // see <moe/common/failure.cuh>
    const int* counts;       // [num_counts]
    int num_counts;
    int capacity;  // rows that the target has room for
    int columns;
    int64_t stride;
};

constexpr int kTile = kWarpSize;  // rows and columns that a block turns at once

// Any grid, any whole number of warps up to kTile.
template <typename T>
EP_DEVICE void scales_by_column(const ByColumnArgs& args, const T* scales, T* target) {
    __shared__ T tile[kTile][kTile + 1];  // one more column, so that lanes use different banks
    int64_t rows = 0;
    for (int i = 0; i < args.num_counts; ++i) rows += args.counts[i];
    const bool failed = block_is_failing(args.broken) || rows > args.capacity;
    if (failed) rows = args.capacity;
    const int row_tiles = static_cast<int>((rows + kTile - 1) / kTile),
              column_tiles = (args.columns + kTile - 1) / kTile;
    for (int item = blockIdx.x; item < row_tiles * column_tiles; item += gridDim.x) {
        const int64_t row = static_cast<int64_t>(item / column_tiles) * kTile;
        const int column = item % column_tiles * kTile;
        for (int i = warp_id(); i < kTile; i += warps_in_block()) {
            const bool here = row + i < rows && column + lane_id() < args.columns;
            if (here)
                tile[i][lane_id()] =
                    failed ? static_cast<T>(-1) : scales[(row + i) * args.columns + column + lane_id()];
        }
        __syncthreads();
        for (int i = warp_id(); i < kTile; i += warps_in_block()) {
            const bool here = row + lane_id() < rows && column + i < args.columns;
            if (here) target[(column + i) * args.stride + row + lane_id()] = tile[lane_id()][i];
        }
        __syncthreads();  // all have read the tile
    }
}

}  // namespace ep::direct

template <typename T>
__global__ void __launch_bounds__(1024) ep_scales_by_column(ep::direct::ByColumnArgs args, const T* scales, T* target) {
    ep::direct::scales_by_column<T>(args, scales, target);
}

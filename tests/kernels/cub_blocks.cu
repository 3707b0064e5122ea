// CUB's algorithms for a block and a warp, with their usual storage in shared memory.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>

extern "C" __global__ void block_reduce(const int* x, int* out) {
    using Reduce = cub::BlockReduce<int, 128>;
    __shared__ typename Reduce::TempStorage storage;
    const int sum = Reduce(storage).Sum(x[threadIdx.x]);
    __syncthreads();
    const int most = Reduce(storage).Reduce(x[threadIdx.x], [](int a, int b) { return a > b ? a : b; });
    if (threadIdx.x == 0) {
        out[0] = sum;
        out[1] = most;
    }
}

extern "C" __global__ void block_scan(const int* x, int* out) {
    using Scan = cub::BlockScan<int, 128>;
    __shared__ typename Scan::TempStorage storage;
    int before;
    Scan(storage).ExclusiveSum(x[threadIdx.x], before);
    out[threadIdx.x] = before;
}

extern "C" __global__ void warp_reduce(const int* x, int* out) {
    using Reduce = cub::WarpReduce<int>;
    __shared__ typename Reduce::TempStorage storage[4];
    const int sum = Reduce(storage[threadIdx.x / 32]).Sum(x[threadIdx.x]);
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}

// Every header that a kernel is likely to include, and a use of each.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>
#include <math_constants.h>
#include <mma.h>

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cuda/atomic>
#include <cuda/std/array>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

namespace cg = cooperative_groups;

extern "C" __global__ void groups(int* out) {
    const cg::thread_block block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);
    const auto quad = cg::tiled_partition<4>(block);
    const int rank = static_cast<int>(block.thread_rank());
    const int in_warp = cg::reduce(warp, rank, cg::plus<int>());
    const int largest = cg::reduce(quad, rank, cg::greater<int>());
    block.sync();
    int odd = 0;
    if (rank % 2 == 1) {
        const auto active = cg::coalesced_threads();
        odd = active.size() + 100 * active.thread_rank() + 10000 * active.shfl(rank, 0);
    }
    cg::sync(warp);
    int* mine = out + 5 * rank;
    mine[0] = in_warp;
    mine[1] = largest;
    mine[2] = odd;
    mine[3] = quad.shfl(rank, 1) + static_cast<int>(quad.ballot(quad.thread_rank() == 2)) * 1000;
    mine[4] = static_cast<int>(quad.meta_group_rank()) + 100 * quad.shfl_xor(rank, 1);
}

extern "C" __global__ void libcu(unsigned long long* total, int* flag, int* seen, float* sum) {
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_system> count(*total);
    count.fetch_add(threadIdx.x, cuda::memory_order_relaxed);
    cuda::atomic_ref<float, cuda::thread_scope_device>(*sum).fetch_add(0.5f, cuda::memory_order_relaxed);
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        seen[1] = 42;
        ready.store(1, cuda::memory_order_release);
    }
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        while (ready.load(cuda::memory_order_acquire) == 0) {
        }
        seen[0] = seen[1];
    }
    __syncthreads();
    const cuda::std::array<int, 3> three = {1, 2, 3};
    if (threadIdx.x == 0)
        atomicMax(&seen[2], three[2] + static_cast<int>(cuda::std::get<1>(cuda::std::make_tuple(1, 2))));
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_system);
}

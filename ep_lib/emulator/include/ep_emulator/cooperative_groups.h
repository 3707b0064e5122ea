// The part of cooperative groups that is shorthand for block and warp functions: thread_block, thread_block_tile,
// coalesced_group and reduce. Grids and clusters that synchronise as a whole are not emulated.
#pragma once
#include <ep_emulator/integer.h>
#include <ep_emulator/unsupported.h>
#include <ep_emulator/warp.h>

// <cooperative_groups/reduce.h> of NVIDIA needs NVIDIA's groups; reduce() is below.
#define _COOPERATIVE_GROUPS_REDUCE_H

namespace cooperative_groups {

class thread_block {
  public:
    static unsigned long long thread_rank() {
        return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    static unsigned size() { return num_threads(); }
    static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
    static void sync() { __syncthreads(); }
};
EPEMU_INLINE thread_block this_thread_block() { return {}; }

// A grid that knows its size; to synchronise it, all blocks would have to be launched as one cooperative kernel.
class grid_group {
  public:
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long block_rank() {
        return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long thread_rank() {
        return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
    }
    template <typename T = void>
    static void sync() {
        static_assert(ep_emulator::kNever<T>, "the emulator has no grid_group::sync: use a counter and atomics");
    }
};
EPEMU_INLINE grid_group this_grid() { return {}; }

template <typename T = void>
EPEMU_INLINE grid_group this_cluster() {
    static_assert(ep_emulator::kNever<T>, "the emulator has no this_cluster: thread-block clusters are not emulated");
    return {};
}

// Lanes of one warp, named by a mask; ranks count them upwards.
class coalesced_group {
  public:
    explicit coalesced_group(unsigned mask) : mask_(mask) {}
    unsigned num_threads() const { return static_cast<unsigned>(__popc(mask_)); }
    unsigned size() const { return num_threads(); }
    unsigned thread_rank() const { return static_cast<unsigned>(__popc(mask_ & ((1u << lane()) - 1))); }
    void sync() const { __syncwarp(mask_); }
    template <typename T>
    T shfl(T value, unsigned rank) const {
        return __shfl_sync(mask_, value, static_cast<int>(__fns(mask_, 0, static_cast<int>(rank) + 1)));
    }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }

  protected:
    static unsigned lane() { return static_cast<unsigned>(thread_block::thread_rank()) % warpSize; }
    // Bits of the group's lanes, moved to their ranks.
    unsigned packed(unsigned lanes) const {
        unsigned result = 0;
        for (unsigned left = mask_, rank = 0; left != 0; left &= left - 1, rank++)
            result |= (lanes >> __builtin_ctz(left) & 1) << rank;
        return result;
    }
    unsigned mask_;
};
EPEMU_INLINE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// Size consecutive lanes of a warp (Size: 1, 2, 4, 8, 16 or 32).
template <unsigned Size, typename Parent = void>
class thread_block_tile : public coalesced_group {
    static_assert(Size <= 32 && (Size & (Size - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");

  public:
    thread_block_tile()
        : coalesced_group((Size == 32 ? 0xffffffffu : (1u << (Size % 32)) - 1) << (lane() / Size * Size)) {}
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
    static unsigned thread_rank() { return lane() % Size; }
    static unsigned meta_group_rank() { return static_cast<unsigned>(thread_block::thread_rank()) / Size; }
    static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }
    template <typename T>
    T shfl(T value, int rank) const {
        return __shfl_sync(mask_, value, rank, Size);
    }
    template <typename T>
    T shfl_up(T value, unsigned delta) const {
        return __shfl_up_sync(mask_, value, delta, Size);
    }
    template <typename T>
    T shfl_down(T value, unsigned delta) const {
        return __shfl_down_sync(mask_, value, delta, Size);
    }
    template <typename T>
    T shfl_xor(T value, unsigned lane_mask) const {
        return __shfl_xor_sync(mask_, value, static_cast<int>(lane_mask), Size);
    }
    template <typename T>
    unsigned match_any(T value) const {
        return packed(__match_any_sync(mask_, value));
    }
};
template <unsigned Size, typename Group>
EPEMU_INLINE thread_block_tile<Size, Group> tiled_partition(const Group&) {
    return {};
}

template <typename Group>
EPEMU_INLINE void sync(const Group& group) {
    group.sync();
}

template <typename T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <typename T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <typename T>
struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <typename T>
struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <typename T>
struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};
// Every thread of the tile gets the same result: a butterfly, so the order of float additions is fixed.
template <unsigned Size, typename Parent, typename T, typename Operation>
EPEMU_INLINE T reduce(const thread_block_tile<Size, Parent>& tile, T value, Operation operation) {
    for (unsigned lane_mask = Size / 2; lane_mask > 0; lane_mask /= 2)
        value = operation(value, tile.shfl_xor(value, lane_mask));
    return value;
}

}  // namespace cooperative_groups

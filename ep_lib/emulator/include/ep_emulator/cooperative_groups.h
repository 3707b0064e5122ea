// The part of cooperative groups that is shorthand for block and warp functions: thread_block, thread_block_tile,
// coalesced_group, thread_group, their partitions, reduce, scans and memcpy_async; and of grids. Clusters that synchronise
// as a whole are not emulated.
#pragma once
#include <ep_emulator/cuda_pipeline.h>
#include <ep_emulator/integer.h>
#include <ep_emulator/nv_atomics.h>
#include <ep_emulator/unsupported.h>
#include <ep_emulator/warp.h>

// These headers of NVIDIA need NVIDIA's groups; their contents are below.
#define _COOPERATIVE_GROUPS_REDUCE_H
#define _COOPERATIVE_GROUPS_SCAN_H
#define _COOPERATIVE_GROUPS_MEMCPY_ASYNC

namespace cooperative_groups {

#define EPEMU_TILES                                                                                                 \
    "the emulator has no tiles of more than 32 threads: a tile has 1, 2, 4, 8, 16 or 32; combine their results in " \
    "shared memory"
template <unsigned MaxThreads = 1024>
struct block_tile_memory {
    static_assert(ep_emulator::kNever<block_tile_memory>, EPEMU_TILES);
};

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
    static void sync(unsigned site = EPEMU_SITE) { __syncthreads(site); }
    // Empty, as NVIDIA's: barrier_wait does all the waiting.
    struct arrival_token {};
    arrival_token barrier_arrive() const { return {}; }
    void barrier_wait(arrival_token&&, unsigned site = EPEMU_SITE) const { __syncthreads(site); }
};
EPEMU_INLINE thread_block this_thread_block() { return {}; }

// The counter of a grid's barrier: each block adds one, and the first block adds the amount that flips the highest bit
// once all have arrived. A kernel without such a barrier has no such variable.
template <typename T = unsigned>
struct grid_barrier {
    static inline T arrived = 0;
    static constexpr T kTurn = T{1} << 31;
};

class grid_group {
  public:
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
    static unsigned long long size() { return num_threads(); }
    static bool is_valid() { return true; }
    static dim3 block_index() { return blockIdx; }
    static unsigned long long block_rank() {
        return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long thread_rank() {
        return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
    }
    using arrival_token = unsigned;
    template <typename Barrier = grid_barrier<>>
    arrival_token barrier_arrive(unsigned site = EPEMU_SITE) const {
        __syncthreads(site);
        if (thread_block::thread_rank() != 0) return 0;
        const unsigned others = static_cast<unsigned>(num_blocks()) - 1;
        const unsigned step = block_rank() == 0 ? Barrier::kTurn - others : 1;
        return __nv_atomic_fetch_add(&Barrier::arrived, step, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
    }
    template <typename Barrier = grid_barrier<>>
    void barrier_wait(arrival_token&& before, unsigned site = EPEMU_SITE) const {
        if (thread_block::thread_rank() == 0)
            while (((before ^ __nv_atomic_load_n(&Barrier::arrived, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE)) &
                    Barrier::kTurn) == 0) {
            }
        __syncthreads(site);
    }
    void sync(unsigned site = EPEMU_SITE) const { barrier_wait(barrier_arrive(site), site); }
};
EPEMU_INLINE grid_group this_grid() { return {}; }

template <typename T = void>
class cluster_group_of {
    static_assert(ep_emulator::kNever<T>, EPEMU_NO_CLUSTERS("cluster_group"));
};
using cluster_group = cluster_group_of<>;
template <typename T = void>
EPEMU_INLINE cluster_group_of<T> this_cluster() {
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
    // A lane whose source is not in the group keeps its own value.
    template <typename T>
    T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return at_rank(value, rank < delta ? rank : rank - delta);
    }
    template <typename T>
    T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return at_rank(value, rank + delta >= size() ? rank : rank + delta);
    }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <typename T>
    unsigned match_any(T value) const {
        return packed(__match_any_sync(mask_, value));
    }
    template <typename T>
    unsigned match_all(T value, int& predicate) const {
        return packed(__match_all_sync(mask_, value, &predicate));
    }
    static unsigned meta_group_rank() { return 0; }
    static unsigned meta_group_size() { return 1; }
    unsigned mask() const { return mask_; }  // not in CUDA: for the functions below

  protected:
    template <typename T>
    T at_rank(T value, unsigned rank) const {
        return __shfl_sync(mask_, value, static_cast<int>(__fns(mask_, 0, static_cast<int>(rank) + 1)));
    }
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

// A block, or lanes of one of its warps, known at run time.
class thread_group {
  public:
    thread_group(const thread_block&) : lanes_(0), is_block_(true) {}
    thread_group(const coalesced_group& lanes) : lanes_(lanes), is_block_(false) {}
    unsigned long long size() const { return is_block_ ? thread_block::size() : lanes_.size(); }
    unsigned long long thread_rank() const { return is_block_ ? thread_block::thread_rank() : lanes_.thread_rank(); }
    void sync(unsigned site = EPEMU_SITE) const { is_block_ ? thread_block::sync(site) : lanes_.sync(); }
    // Not in CUDA: splits the group into groups of `threads` consecutive ranks; returns the caller's.
    coalesced_group part(unsigned threads) const {
        if (threads == 0 || threads > warpSize || (threads & (threads - 1)) != 0)
            epemu_trap("tiled_partition into groups that do not have 1, 2, 4, 8, 16 or 32 threads");
        unsigned all = is_block_ ? 0xffffffffu : lanes_.mask(), part = 0;
        const unsigned rank = (is_block_ ? thread_block::thread_rank() % warpSize : lanes_.thread_rank()) / threads;
        for (unsigned at = 0; all != 0 && at < (rank + 1) * threads; all &= all - 1, at++)
            if (at >= rank * threads) part |= all & -all;
        return coalesced_group(part);
    }

  private:
    coalesced_group lanes_;
    bool is_block_;
};
EPEMU_INLINE thread_group tiled_partition(const thread_group& parent, unsigned threads) { return parent.part(threads); }
EPEMU_INLINE coalesced_group tiled_partition(const coalesced_group& parent, unsigned threads) {
    return thread_group(parent).part(threads);
}

// Size consecutive lanes of a warp (Size: 1, 2, 4, 8, 16 or 32).
template <unsigned Size, typename Parent = void>
class thread_block_tile : public coalesced_group {
    static_assert(Size <= 32 && (Size & (Size - 1)) == 0, EPEMU_TILES);

  public:
    thread_block_tile()
        : coalesced_group((Size == 32 ? 0xffffffffu : (1u << (Size % 32)) - 1) << (lane() / Size * Size)) {}
    // A tile of any parent converts to a tile without one.
    template <typename Other>
    thread_block_tile(const thread_block_tile<Size, Other>&) : thread_block_tile() {}
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
// ---- partitions: lanes of a group with the same label (any integer, pointer or bool) are a group of their own ---------
template <typename Label>
EPEMU_INLINE coalesced_group labeled_partition(const coalesced_group& group, Label label) {
    return coalesced_group(__match_any_sync(group.mask(), (unsigned long long)(label)));
}
EPEMU_INLINE coalesced_group binary_partition(const coalesced_group& group, bool label) {
    const unsigned yes = __ballot_sync(group.mask(), label);
    return coalesced_group(label ? yes : group.mask() & ~yes);
}

// ---- reduce: every thread of a tile gets the same result, by a butterfly, so the order of float additions is fixed ------
template <unsigned Size, typename Parent, typename T, typename Operation>
EPEMU_INLINE T reduce(const thread_block_tile<Size, Parent>& tile, T value, Operation operation) {
    for (unsigned lane_mask = Size / 2; lane_mask > 0; lane_mask /= 2)
        value = operation(value, tile.shfl_xor(value, lane_mask));
    return value;
}

// ---- scans: over the ranks of the group, by doubling distances -----------------------------------------------------------
template <typename Group, typename T, typename Operation>
EPEMU_INLINE auto inclusive_scan(const Group& group, T value, Operation operation) -> T {
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        const T before = group.shfl_up(value, distance);
        if (group.thread_rank() >= distance) value = operation(before, value);
    }
    return value;
}
template <typename Group, typename T>
EPEMU_INLINE T inclusive_scan(const Group& group, T value) {
    return inclusive_scan(group, value, plus<T>());
}
// The first thread gets the identity of plus, else T().
template <typename Group, typename T, typename Operation>
EPEMU_INLINE auto exclusive_scan(const Group& group, T value, Operation operation) -> T {
    const T before = group.shfl_up(inclusive_scan(group, value, operation), 1);
    return group.thread_rank() == 0 ? T() : before;
}
template <typename Group, typename T>
EPEMU_INLINE T exclusive_scan(const Group& group, T value) {
    return exclusive_scan(group, value, plus<T>());
}
template <typename T, typename Operation>
EPEMU_INLINE T reduce(const coalesced_group& group, T value, Operation operation) {
    return group.shfl(inclusive_scan(group, value, operation), group.size() - 1);
}
struct RelaxedOrder {  // memory_order_relaxed of whichever atomic it is
    template <typename Order, typename = typename std::enable_if<std::is_enum<Order>::value>::type>
    constexpr operator Order() const {
        return static_cast<Order>(0);
    }
};
// Stores a reduction's result: into a variable, into an atomic, or combined with an atomic's value.
template <typename Group, typename T, typename Operation>
EPEMU_INLINE void reduce_store_async(const Group& group, T* target, T value, Operation operation) {
    const T result = reduce(group, value, operation);
    if (group.thread_rank() == 0) *target = result;
}
template <typename Group, typename Atomic, typename T, typename Operation>
EPEMU_INLINE auto reduce_store_async(const Group& group, Atomic&& target, T value, Operation operation)
    -> decltype(target.store(value)) {
    const T result = reduce(group, value, operation);
    if (group.thread_rank() == 0) target.store(result, RelaxedOrder());
}
template <typename Group, typename Atomic, typename T, typename Operation>
EPEMU_INLINE void reduce_update_async(const Group& group, Atomic&& target, T value, Operation operation) {
    const T result = reduce(group, value, operation);
    if (group.thread_rank() != 0) return;
    T held = target.load(RelaxedOrder());
    while (!target.compare_exchange_weak(held, operation(held, result), RelaxedOrder())) {
    }
}

// ---- one thread of the group calls; CUDA does not define which ----------------------------------------------------------
template <typename Group, typename Function, typename... Arguments>
EPEMU_INLINE void invoke_one(const Group& group, Function&& function, Arguments&&... arguments) {
    if (group.thread_rank() == 0) std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
}
template <typename Group, typename Function, typename... Arguments>
EPEMU_INLINE auto invoke_one_broadcast(const Group& group, Function&& function, Arguments&&... arguments) {
    std::decay_t<std::invoke_result_t<Function, Arguments...>> result{};
    if (group.thread_rank() == 0) result = std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
    return group.shfl(result, 0);
}

// A scan that starts from an atomic's value (cuda::atomic or cuda::atomic_ref) and adds the total to it.
template <typename Group, typename Atomic, typename T>
EPEMU_INLINE T inclusive_scan_update(const Group& group, Atomic&& total, T value) {
    const T sum = inclusive_scan(group, value);
    T before = T();
    if (group.thread_rank() == group.size() - 1) before = total.fetch_add(sum, RelaxedOrder());
    return group.shfl(before, group.size() - 1) + sum;
}
template <typename Group, typename Atomic, typename T>
EPEMU_INLINE T exclusive_scan_update(const Group& group, Atomic&& total, T value) {
    return inclusive_scan_update(group, total, value) - value;
}

// ---- memcpy_async ------------------------------------------------------------------------------------------------------
template <typename Group, typename T, typename Bytes>
EPEMU_INLINE void memcpy_async(const Group& group, T* target, const T* source, const Bytes& count) {
    ep_emulator::copy_by_group(group, target, source, static_cast<size_t>(count));
    ep_emulator::copy_commit();
}
template <typename Group, typename Bytes>
EPEMU_INLINE void memcpy_async(const Group& group, void* target, const void* source, const Bytes& count) {
    memcpy_async(group, static_cast<char*>(target), static_cast<const char*>(source), count);
}
// Copies elements: the smaller of both counts.
template <typename Group, typename T, typename TargetCount, typename SourceCount>
EPEMU_INLINE void memcpy_async(const Group& group, T* target, const TargetCount& target_count, const T* source,
                               const SourceCount& source_count) {
    const size_t count = std::min(static_cast<size_t>(target_count), static_cast<size_t>(source_count));
    memcpy_async(group, target, source, count * sizeof(T));
}
template <unsigned Stages, typename Group>
EPEMU_INLINE void wait_prior(const Group& group) {
    ep_emulator::copy_wait(Stages);
    group.sync();
}
template <typename Group>
EPEMU_INLINE void wait(const Group& group) {
    wait_prior<0>(group);
}

}  // namespace cooperative_groups

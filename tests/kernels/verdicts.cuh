// Small kernels that the checker must tell apart: each wrong one beside a right one.
#include <cuda/atomic>
#include <cuda/barrier>

#include <ep/memory.cuh>
#include <ep/net.cuh>
#include <ep/peer.cuh>
#include <ep/platform.cuh>
#include <ep/tma.cuh>

using namespace ep;

struct Memory {  // each symmetric, except for `out`
    uint32_t* data;
    uint64_t* flag;
    uint32_t* out;
};

EP_DEVICE int other_rank() { return rank() ^ 1; }
EP_DEVICE int me() { return thread_in_block(); }

// ---- scopes of cuda::atomic_thread_fence
template <cuda::thread_scope kScope>
EP_DEVICE void send_behind_fence(Memory m) {
    if (me() != 0) return;
    uint32_t* far = peer_ptr(m.data, other_rank());
    uint64_t* signal = peer_ptr(m.flag, other_rank());
    *far = 7;
    cuda::atomic_thread_fence(cuda::memory_order_release, kScope);
    st_relaxed_sys_u64(signal, 1);
    while (ld_relaxed_sys_u64(m.flag) != 1) {
    }
    cuda::atomic_thread_fence(cuda::memory_order_acquire);
    m.out[0] = *m.data;
}
EP_DEVICE void fence_of_the_system(Memory m) { send_behind_fence<cuda::thread_scope_system>(m); }
EP_DEVICE void fence_of_the_device(Memory m) { send_behind_fence<cuda::thread_scope_device>(m); }
EP_DEVICE void fence_of_the_block(Memory m) { send_behind_fence<cuda::thread_scope_block>(m); }

// ---- the first access to shared memory
EP_DEVICE void shared_volatile_stored_first(Memory m) {
    __shared__ volatile int word;
    if (me() == 0) word = 3;
    __syncthreads();
    m.out[me()] = word;
}
EP_DEVICE void shared_atomic_stored_first(Memory m) {
    __shared__ unsigned word;
    if (me() == 0) cuda::atomic_ref<unsigned, cuda::thread_scope_block>(word).store(3, cuda::memory_order_relaxed);
    __syncthreads();
    atomicAdd(&word, 1);
    __syncthreads();
    m.out[me()] = word;
}
EP_DEVICE void shared_cuda_barrier(Memory m) {
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (me() == 0) init(&barrier, blockDim.x);
    __syncthreads();
    barrier.arrive_and_wait();
    m.out[me()] = 1;
}
EP_DEVICE void boxes_behind_cuda_barriers(Memory m) {
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ Barrier full, empty;
    __shared__ uint32_t box[kWarpSize];
    if (me() == 0) {
        init(&full, blockDim.x);
        init(&empty, blockDim.x);
    }
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        if (me() < kWarpSize) {
            box[me()] = i + me();
            (void)full.arrive();
            empty.arrive_and_wait();
        } else {
            full.arrive_and_wait();
            m.out[me()] = box[me() - kWarpSize];
            (void)empty.arrive();
        }
    }
}
EP_DEVICE void shared_added_to_first(Memory m) {
    __shared__ unsigned word;
    atomicAdd(&word, 1);
    __syncthreads();
    m.out[me()] = word != 0;
}

EP_DEVICE void shared_exchanged_first(Memory m) {
    __shared__ unsigned word;
    if (threadIdx.x == 0) atomicExch(&word, 1u);
    __syncthreads();
    m.out[me()] = word;
}
EP_DEVICE void shared_lock_that_is_never_free(Memory m) {
    __shared__ unsigned lock;
    if (threadIdx.x % 32 != 0) return;
    for (int turn = 0; turn < 100 && atomicExch(&lock, 1u) != 0; turn++) {
    }
    atomicExch(&lock, 0u);
}

// ---- many readers of one word, and one that writes it too early
template <int kLate>  // this one tells of its read too early
EP_DEVICE void all_read_and_tell(Memory m) {
    if (me() == 40) {
        while (ld_acquire_gpu_u64(m.flag) != blockDim.x - 1) {
        }
        m.data[0] = 9;
        return;
    }
    if (me() == kLate) atom_add_acq_rel_gpu_u64(m.flag, 1);
    m.out[me()] = m.data[0];
    if (me() != kLate) atom_add_acq_rel_gpu_u64(m.flag, 1);
}
EP_DEVICE void all_tell_when_they_have_read(Memory m) { all_read_and_tell<-1>(m); }
EP_DEVICE void one_tells_before_it_reads(Memory m) { all_read_and_tell<2>(m); }

// ---- NICs: rank 0 posts
EP_DEVICE void get_reads_what_a_put_brings(Memory m) {
    if (me() != 0 || rank() != 0) return;
    net_put_nbi(m.data, m.data + 64, 64, 1, 0);
    net_get_nbi(m.data + 128, m.data, 64, 1, 1);
    net_quiet();
}
EP_DEVICE void put_after_get(Memory m) {  // of the same words
    if (me() != 0 || rank() != 0) return;
    net_get_nbi(m.data + 128, m.data, 64, 1);
    net_put_nbi(m.data, m.data + 64, 64, 1);
    net_quiet();
}
EP_DEVICE void put_after_get_and_fence(Memory m) {
    if (me() != 0 || rank() != 0) return;
    net_get_nbi(m.data + 128, m.data, 64, 1);
    net_fence(1, 0);
    net_put_nbi(m.data, m.data + 64, 64, 1);
    net_quiet();
}

EP_DEVICE void nics_add(Memory m) {
    if (me() == 0) net_atomic_add_u64_nbi(m.flag, 1, 1);
    net_quiet();
}
EP_DEVICE void each_other_is_the_credit(Memory m) {  // two slots are enough
    for (uint64_t round = 0; round < 4; ++round) {
        uint32_t *source = m.data + 128 + round % 2 * 64, *slot = m.data + round % 2 * 64;
        source[me()] = round;
        __syncthreads();
        if (me() == 0) {
            net_put_signal_nbi(slot, source, 256, m.flag + round % 2, round + 1, other_rank(), 0, NetSignal::kSet);
            while (ld_acquire_sys_u64(m.flag + round % 2) < round + 1) {
            }
        }
        __syncthreads();
        m.out[me()] += slot[me()];
        __syncthreads();
    }
}

// ---- atomics of two widths at one address
EP_DEVICE void half_of_a_flag(Memory m) {
    if (me() == 0) st_release_sys_u64(peer_ptr(m.flag, other_rank()), 1);
    if (me() == 0) {
        while (ld_acquire_sys_u32(reinterpret_cast<uint32_t*>(m.flag)) != 1) {
        }
    }
}
EP_DEVICE void nic_adds_to_half(Memory m) {
    if (me() != 0) return;
    if (rank() == 0) net_atomic_add_u64_nbi(m.flag, 1, 1);
    if (rank() == 1) m.out[0] = ld_relaxed_sys_u32(reinterpret_cast<uint32_t*>(m.flag));
    net_quiet();
}

// ---- bulk copies: warp 0 changes rows on their way from its memory to the peer's
enum Mistake {
    kNone,
    kNoWait,
    kOtherPhase,
    kNoWaitRead,
    kNoWaitWritten,
    kSignalTooEarly,
    kNoFence,
    kNoSyncwarp,
    kEndsEarly,
};
template <Mistake kMistake>
EP_DEVICE void send_rows(Memory m) {
    constexpr int kRows = 3, kBytes = 128;  // a word of each row for each lane
    __shared__ __align__(128) uint32_t row[32];
    __shared__ uint64_t barriers[1];
    if (warp_id() > 0) return;
    TmaRing ring(barriers, 1);
    const auto tell = [&](uint64_t rows) {
        if (lane_id() == 0) st_release_sys_u64(peer_ptr(m.flag, other_rank()), rows);
    };
    for (int r = 0; r < kRows; ++r) {
        if (kMistake != kNoWaitRead) tma_wait_read<0>();
        tma_load(row, m.data + 32 * r, kBytes, ring.barrier());
        tma_arrive(ring.barrier(), kBytes);
        if (kMistake == kOtherPhase) tma_wait(ring.barrier(), ring.phase ^ 1);
        if (kMistake != kNoWait && kMistake != kOtherPhase) ring.wait();
        if (kMistake == kNoWait) __syncwarp();
        ring.next();
        row[lane_id()] += 1;
        if (kMistake != kNoFence) tma_fence();
        if (kMistake != kNoSyncwarp) __syncwarp();
        tma_store(peer_ptr(m.data + 128 + 32 * r, other_rank()), row, kBytes);
        tma_commit();
        if (kMistake == kSignalTooEarly && r == kRows - 1) tell(kRows);
    }
    if (kMistake == kEndsEarly) return;
    if (kMistake == kNoWaitWritten) tma_wait_read<0>();
    if (kMistake != kNoWaitWritten) tma_wait_written<0>();
    if (kMistake != kSignalTooEarly) tell(kRows);
    if (lane_id() == 0) {
        while (ld_acquire_sys_u64(m.flag) != kRows) {
        }
    }
    __syncwarp();
    m.out[lane_id()] = m.data[128 + lane_id()];
}
template <bool kSyncwarp>  // between the last read of a row and the next load
EP_DEVICE void sum_rows(Memory m) {
    __shared__ __align__(128) uint32_t row[32];
    __shared__ uint64_t barriers[1];
    if (warp_id() > 0) return;
    TmaRing ring(barriers, 1);
    uint32_t sum = 0;
    for (int r = 0; r < 4; ++r) {
        tma_load(row, m.data + 32 * r, 128, ring.barrier());
        tma_arrive(ring.barrier(), 128);
        ring.wait();
        ring.next();
        sum += row[lane_id() ^ 1];
        if (kSyncwarp) __syncwarp();
    }
    m.out[lane_id()] = sum;
}
EP_DEVICE void tma_rows(Memory m) { send_rows<kNone>(m); }
EP_DEVICE void tma_rows_without_wait(Memory m) { send_rows<kNoWait>(m); }
EP_DEVICE void tma_rows_of_the_round_before(Memory m) { send_rows<kOtherPhase>(m); }
EP_DEVICE void tma_rows_without_wait_read(Memory m) { send_rows<kNoWaitRead>(m); }
EP_DEVICE void tma_rows_without_wait_written(Memory m) { send_rows<kNoWaitWritten>(m); }
EP_DEVICE void tma_rows_signalled_too_early(Memory m) { send_rows<kSignalTooEarly>(m); }
EP_DEVICE void tma_rows_without_fence(Memory m) { send_rows<kNoFence>(m); }
EP_DEVICE void tma_rows_without_syncwarp(Memory m) { send_rows<kNoSyncwarp>(m); }
EP_DEVICE void tma_rows_of_a_block_that_ends(Memory m) { send_rows<kEndsEarly>(m); }
EP_DEVICE void tma_sums(Memory m) { sum_rows<true>(m); }
EP_DEVICE void tma_sums_without_syncwarp(Memory m) { sum_rows<false>(m); }

// ---- what CUDA leaves open
EP_DEVICE void sum_of_twenty_lanes(Memory m, bool guarded) {
    constexpr int kLanes = 20;
    constexpr uint32_t kMask = (1u << kLanes) - 1;
    if (me() >= kLanes) return;
    uint32_t sum = me() + 1;
    for (int d = 16; d > 0; d /= 2) {
        const uint32_t other = __shfl_down_sync(kMask, sum, d);
        if (!guarded || me() + d < kLanes) sum += other;
    }
    if (me() == 0) m.out[0] = sum;
}
EP_DEVICE void shuffle_beyond_the_mask(Memory m) { sum_of_twenty_lanes(m, false); }
EP_DEVICE void shuffle_whose_value_is_dropped(Memory m) { sum_of_twenty_lanes(m, true); }
EP_DEVICE void activemask_taken_as_the_warp(Memory m) {
    if (me() < 32) m.out[me()] = __reduce_add_sync(__activemask(), me());
}
EP_DEVICE void activemask_of_whoever_is_there(Memory m) {  // adds for all of them at once
    if (me() >= 32) return;
    auto* const counter = reinterpret_cast<unsigned long long*>(m.flag);
    const uint32_t together = __activemask();
    if (lane_id() == __ffs(together) - 1) atomicAdd(counter, static_cast<unsigned long long>(__popc(together)));
    __syncwarp();
    if (me() == 0) m.out[0] = atomicAdd(counter, 0ull);
}

// ---- the read-only path
EP_DEVICE void read_only_of_what_the_block_wrote(Memory m) {
    m.data[me()] = 5;
    __syncthreads();
    m.out[me()] = ld_nc_v4(reinterpret_cast<const int4*>(m.data) + me() / 4).x;
}
EP_DEVICE void ldg_of_what_the_block_wrote(Memory m) {
    m.data[me()] = 5;
    __syncthreads();
    m.out[me()] = __ldg(m.data + (me() ^ 1));
}
EP_DEVICE void read_only_of_input(Memory m) {
    const int4 in = ld_nc_v4(reinterpret_cast<const int4*>(m.data) + me() / 4);
    m.out[me()] = in.x + __ldg(m.data + me());
    m.data[128 + me()] = m.out[me()];
}

// ---- a barrier of all blocks
EP_DEVICE void grid_barrier(Memory m) {
    if (me() != 0) return;
    atom_add_acq_rel_gpu_u64(m.flag, 1);
    while (ld_acquire_gpu_u64(m.flag) < gridDim.x) {
    }
}

// Whoever has seen the last addition clears the counter by a plain store; one that has seen none of it may not.
template <bool kSees>
EP_DEVICE void clears_a_counter(Memory m) {
    if (me() != 0) return;
    auto* const count = reinterpret_cast<unsigned*>(m.flag);
    const bool last = atomicAdd(count, 1u) == gridDim.x - 1;
    if (kSees ? last : blockIdx.x == 0) *count = 0;
}
EP_DEVICE void the_last_clears_a_counter(Memory m) { clears_a_counter<true>(m); }
EP_DEVICE void one_clears_a_counter(Memory m) { clears_a_counter<false>(m); }

// ---- volatile
template <bool kFences>
EP_DEVICE void volatile_data_behind_a_lock(Memory m) {
    if (me() != 0) return;
    auto* const lock = reinterpret_cast<unsigned*>(m.flag);
    volatile uint32_t* const data = m.data;
    while (atomicCAS(lock, 0u, 1u) != 0) {
    }
    if (kFences) __threadfence();
    data[0] = data[0] + 1;
    if (kFences) __threadfence();
    atomicExch(lock, 0u);
}
EP_DEVICE void volatile_data_behind_a_right_lock(Memory m) { volatile_data_behind_a_lock<true>(m); }
EP_DEVICE void volatile_data_behind_a_wrong_lock(Memory m) { volatile_data_behind_a_lock<false>(m); }
EP_DEVICE void volatile_flag(Memory m) {
    if (me() != 0) return;
    volatile uint64_t* const far = peer_ptr(m.flag, other_rank());
    volatile uint64_t* const near = m.flag;
    peer_ptr(m.data, other_rank())[0] = 3;
    __threadfence_system();
    *far = 1;
    while (*near != 1) {
    }
    __threadfence_system();
    m.out[0] = m.data[0];
}

// A release for the block is taken up by another thread of it, whose own release reaches the other block.
EP_DEVICE void passed_on_to_another_block(Memory m) {
    if (blockIdx.x == 0 && me() == 0) {
        __threadfence_block();
        st_relaxed_gpu_u64(m.flag, 1);
    } else if (blockIdx.x == 0 && me() == 32) {
        while (ld_acquire_gpu_u64(m.flag) != 1) {
        }
        m.data[0] = 2;
        atom_exch_acq_rel_gpu_u64(m.flag, 2);
    } else if (blockIdx.x == 1 && me() == 0) {
        while (ld_acquire_gpu_u64(m.flag) != 2) {
        }
        m.out[0] = m.data[0];
    }
}

// Bulk copies on the emulator: separate operations, which read and write some time after they were posted, so that a
// missing wait shows; the checker names it, and a missing tma_fence, too. <ep/tma.cuh> documents each function.
//
// In virtual time the lanes copy at once, and a barrier counts its rounds.
#pragma once
#include <ep/cpu/primitives.cuh>
#include <ep/platform.cuh>

namespace ep {

namespace detail {
EP_DEVICE bool is_first_lane() { return thread_in_block() % kWarpSize == 0; }
EP_DEVICE void copy_by_lanes(void* target, const void* source, uint32_t bytes) {
    const int lane = thread_in_block() % kWarpSize;
    for (uint32_t i = lane; i < bytes / 16; i += kWarpSize) {
        st_na_v4(static_cast<int4*>(target) + i, ld_na_v4(static_cast<const int4*>(source) + i));
    }
}
}  // namespace detail

EP_DEVICE void tma_fence() { epemu_proxy_fence(); }

EP_DEVICE void tma_barrier_init(uint64_t* barrier) {
    *barrier = 0;
    epemu_bulk_init(barrier);
}

EP_DEVICE void tma_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    if (epemu_bulk_by_lanes()) {
        detail::copy_by_lanes(shared, global, bytes);
    } else if (detail::is_first_lane()) {
        epemu_bulk_load(shared, global, bytes, barrier);
    }
}

EP_DEVICE void tma_arrive(uint64_t* barrier, uint32_t bytes) {
    if (epemu_bulk_by_lanes()) {
        __syncwarp();
        if (detail::is_first_lane()) *barrier += 1;
        __syncwarp();
    } else if (detail::is_first_lane()) {
        epemu_bulk_arrive(barrier, bytes);
    }
}

EP_DEVICE void tma_wait(uint64_t* barrier, uint32_t phase) {
    if (!epemu_bulk_by_lanes()) {
        epemu_bulk_wait(barrier, phase);
    } else if ((*barrier & 1) == (phase & 1)) {
        epemu_trap(
            "tma_wait for a round that no tma_arrive began (the phase is 0 for the first round, then 1, 0, 1, ...)");
    }
    __syncwarp();
}

EP_DEVICE void tma_store(void* global, const void* shared, uint32_t bytes) {
    if (epemu_bulk_by_lanes()) {
        detail::copy_by_lanes(global, shared, bytes);
    } else {
        epemu_bulk_store(global, shared, bytes);
    }
}

EP_DEVICE void tma_commit() {
    if (!epemu_bulk_by_lanes() && detail::is_first_lane()) epemu_bulk_commit();
}

template <int kGroups>
EP_DEVICE void tma_wait_read() {
    if (!epemu_bulk_by_lanes() && detail::is_first_lane()) epemu_bulk_wait_groups(kGroups, false);
    __syncwarp();
}

template <int kGroups>
EP_DEVICE void tma_wait_written() {
    if (!epemu_bulk_by_lanes() && detail::is_first_lane()) epemu_bulk_wait_groups(kGroups, true);
    __syncwarp();
}

}  // namespace ep

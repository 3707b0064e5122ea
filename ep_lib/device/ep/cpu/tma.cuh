// Bulk copies on the emulator: the lanes copy at once, and the checker sees every access. <ep/tma.cuh> documents each
// function. A barrier counts its rounds, so a wait for the wrong phase is reported here instead of hanging on a GPU. A
// missing wait for stores is NOT found, because the stores are done when tma_store returns.
#pragma once
#include <ep/cpu/primitives.cuh>
#include <ep/platform.cuh>

namespace ep {

EP_DEVICE void tma_fence() {}

EP_DEVICE void tma_barrier_init(uint64_t* barrier) { *barrier = 0; }

namespace detail {
EP_DEVICE void copy_by_lanes(void* target, const void* source, uint32_t bytes) {
    if (reinterpret_cast<uint64_t>(target) % 16 || reinterpret_cast<uint64_t>(source) % 16 || bytes % 16) {
        epemu_trap("a bulk copy whose source, target or size is not a multiple of 16 bytes");
    }
    // Rotate lanes so that a missing fence or __syncwarp shows up as a race.
    const int lane = (thread_in_block() + 1) % kWarpSize;
    for (uint32_t i = lane; i < bytes / 16; i += kWarpSize) {
        st_na_v4(static_cast<int4*>(target) + i, ld_na_v4(static_cast<const int4*>(source) + i));
    }
}
}  // namespace detail

EP_DEVICE void tma_load(void* shared, const void* global, uint32_t bytes, uint64_t*) {
    detail::copy_by_lanes(shared, global, bytes);
}

EP_DEVICE void tma_arrive(uint64_t* barrier, uint32_t) {
    __syncwarp();
    if (thread_in_block() % kWarpSize == 0) *barrier += 1;
    __syncwarp();
}

EP_DEVICE void tma_wait(uint64_t* barrier, uint32_t phase) {
    if ((*barrier & 1) == (phase & 1)) epemu_trap("tma_wait for a round that no tma_arrive began");
    __syncwarp();
}

EP_DEVICE void tma_store(void* global, const void* shared, uint32_t bytes) {
    detail::copy_by_lanes(global, shared, bytes);
}

EP_DEVICE void tma_commit() {}

template <int kGroups>
EP_DEVICE void tma_wait_read() {
    __syncwarp();
}

template <int kGroups>
EP_DEVICE void tma_wait_written() {
    __syncwarp();
}

}  // namespace ep

// Bulk copies on the emulator: the lanes copy at once, and the checker sees every access. <ep/bulk.cuh> says what each
// one is for. A barrier counts its rounds, so that a wait for the wrong parity is found here, not as a hang on a GPU;
// that a wait for stores is missing is NOT found, since the stores are done when bulk_store returns.
#pragma once
#include <ep/cpu/primitives.cuh>
#include <ep/platform.cuh>

namespace ep {

EP_DEVICE void bulk_fence() {}

EP_DEVICE void bulk_barrier_init(uint64_t* barrier) { *barrier = 0; }

namespace detail {
EP_DEVICE void copy_by_lanes(void* target, const void* source, uint32_t bytes) {
    if (reinterpret_cast<uint64_t>(target) % 16 || reinterpret_cast<uint64_t>(source) % 16 || bytes % 16) {
        epemu_trap("a bulk copy whose source, target or size is not a multiple of 16 bytes");
    }
    // Not each lane what it most often uses itself: who forgets that the engine is somebody else shall be seen.
    const int lane = (thread_in_block() + 1) % kWarpSize;
    for (uint32_t i = lane; i < bytes / 16; i += kWarpSize) {
        st_na_v4(static_cast<int4*>(target) + i, ld_na_v4(static_cast<const int4*>(source) + i));
    }
}
}  // namespace detail

EP_DEVICE void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t*) {
    detail::copy_by_lanes(shared, global, bytes);
}

EP_DEVICE void bulk_arrive(uint64_t* barrier, uint32_t) {
    __syncwarp();
    if (thread_in_block() % kWarpSize == 0) *barrier += 1;
    __syncwarp();
}

EP_DEVICE void bulk_wait(uint64_t* barrier, uint32_t parity) {
    if ((*barrier & 1) == (parity & 1)) epemu_trap("bulk_wait for a round of which no bulk_arrive was called");
    __syncwarp();
}

EP_DEVICE void bulk_store(void* global, const void* shared, uint32_t bytes) {
    detail::copy_by_lanes(global, shared, bytes);
}

EP_DEVICE void bulk_commit() {}

template <int kGroups>
EP_DEVICE void bulk_wait_read() {
    __syncwarp();
}

template <int kGroups>
EP_DEVICE void bulk_wait_written() {
    __syncwarp();
}

}  // namespace ep

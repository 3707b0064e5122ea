// Bulk copies on an NVIDIA GPU; <ep/tma.cuh> documents each function. GPUs before sm_90 have no TMA: there the lanes of
// the warp copy. The choice is made here because only the compiler knows the architecture that it compiles for.
#pragma once
#include <ep/platform.cuh>

namespace ep {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace detail {
EP_DEVICE uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
EP_DEVICE bool is_first_lane() { return thread_in_block() % kWarpSize == 0; }
}  // namespace detail

EP_DEVICE void tma_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

EP_DEVICE void tma_barrier_init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(detail::shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Completion is counted on `barrier`, the one that the next tma_arrive names.
EP_DEVICE void tma_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    if (detail::is_first_lane()) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         detail::shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(detail::shared_address(barrier))
                     : "memory");
    }
}

EP_DEVICE void tma_arrive(uint64_t* barrier, uint32_t bytes) {
    if (detail::is_first_lane()) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(detail::shared_address(barrier)),
                     "r"(bytes)
                     : "memory");
    }
}

EP_DEVICE void tma_wait(uint64_t* barrier, uint32_t phase) {
    uint32_t done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(detail::shared_address(barrier)), "r"(phase)
                     : "memory");
    }
    __syncwarp();
}

EP_DEVICE void tma_store(void* global, const void* shared, uint32_t bytes) {
    if (detail::is_first_lane()) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                     "r"(detail::shared_address(shared)), "r"(bytes)
                     : "memory");
    }
}

EP_DEVICE void tma_commit() {
    if (detail::is_first_lane()) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int kGroups>
EP_DEVICE void tma_wait_read() {
    if (detail::is_first_lane()) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
    __syncwarp();
}

template <int kGroups>
EP_DEVICE void tma_wait_written() {
    if (detail::is_first_lane()) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
    __syncwarp();
}

#else

EP_DEVICE void tma_fence() {}
EP_DEVICE void tma_barrier_init(uint64_t* barrier) { *barrier = 0; }

namespace detail {
EP_DEVICE void copy_by_lanes(void* target, const void* source, uint32_t bytes) {
    const int lane = thread_in_block() % kWarpSize;
    for (uint32_t i = lane; i < bytes / 16; i += kWarpSize) {
        static_cast<int4*>(target)[i] = static_cast<const int4*>(source)[i];
    }
}
}  // namespace detail

EP_DEVICE void tma_load(void* shared, const void* global, uint32_t bytes, uint64_t*) {
    detail::copy_by_lanes(shared, global, bytes);
}
EP_DEVICE void tma_arrive(uint64_t*, uint32_t) { __syncwarp(); }
EP_DEVICE void tma_wait(uint64_t*, uint32_t) { __syncwarp(); }
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

#endif

}  // namespace ep

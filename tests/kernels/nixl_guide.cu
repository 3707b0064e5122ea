// The kernels of the NIXL Device API Kernel Guide, pasted as they stand there;
// only the parameter lists that the guide shortens to "..." are written out, and the includes are ours.
// clang-format off
#include <ep/nixl_device.cuh>

__global__ void thread_level_kernel(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        // Single thread posts write
        nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::THREAD>(
            data_req, 0, 0, 0, size, 0, true
        );
        // Single thread posts signal
        nixlGpuPostSignalXferReq<nixl_gpu_level_t::THREAD>(
            signal_req, 0, 1, 0, 0, true
        );
    }
}

__global__ void warp_level_kernel(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size) {
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        unsigned lane = threadIdx.x;
        // All 32 threads cooperate on write
        nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::WARP>(
            data_req, 0, 0, 0, size, 0, true
        );
        // Lane 0 posts signal
        if (lane == 0) {
            nixlGpuPostSignalXferReq<nixl_gpu_level_t::WARP>(
                signal_req, 0, 1, 0, 0, true
            );
        }
    }
}

__global__ void post_write_and_signal_kernel_warp(
    uintptr_t data_req_handles_ptr,
    int data_req_count,
    uintptr_t signal_req_handle,
    uint64_t *signal_ptr,
    size_t size,
    uint64_t signal_inc,
    int pipeline
) {
    if (blockIdx.x == 0 && threadIdx.x < WARP_SIZE) {
        auto *data_req_handles =
            reinterpret_cast<const uintptr_t *>(data_req_handles_ptr);
        nixlGpuXferReqH data_req =
            reinterpret_cast<nixlGpuXferReqH>(data_req_handles[0]);
        nixlGpuXferReqH signal_req =
            reinterpret_cast<nixlGpuXferReqH>(signal_req_handle);

        unsigned lane = threadIdx.x;

        // Post the write
        nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::WARP>(
            data_req, 0, 0, 0, size, 0, true
        );

        // Signal completion (lane 0 only)
        if (lane == 0) {
            nixlGpuPostSignalXferReq<nixl_gpu_level_t::WARP>(
                signal_req, 0, signal_inc, 0, 0, true
            );
        }
    }
}

__global__ void wait_for_signal_kernel_thread(
    const void* signal_ptr,
    uint64_t expected_value
) {
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        // Busy-wait until signal reaches expected value
        while (nixlGpuReadSignal<nixl_gpu_level_t::THREAD>(signal_ptr)
               < expected_value) {
            // GPU polling - no CPU involvement
        }
    }
}

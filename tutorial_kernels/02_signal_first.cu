// A kernel on NIXL's request handles with its classic mistake. DELIBERATELY WRONG: for notebook 02 and the checker.
#include <ep/nixl_device.cuh>

// WRONG: the signal is posted before the write that it announces. thread_level_kernel of the guide has them in order.
extern "C" __global__ void signal_first(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    nixlGpuPostSignalXferReq<nixl_gpu_level_t::THREAD>(signal_req, 0, 1, 0, 0, true);
    nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::THREAD>(data_req, 0, 0, 0, size, 0, true);
}

// The other side: waits for the signal, then copies what it finds.
extern "C" __global__ void wait_and_copy(const uint64_t* signal, const char* data, char* out, size_t size) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    while (nixlGpuReadSignal<nixl_gpu_level_t::THREAD>(signal) < 1) {
    }
    for (size_t i = 0; i < size; ++i) out[i] = data[i];
}

// What the guide's kernels leave out of <ep/nixl_device.cuh>: the block level, several targets, memory views, mistakes.
#include <ep/nixl_device.cuh>

using Level = nixl_gpu_level_t;

template <Level LEVEL>
__device__ bool takes_part() {
    if (blockIdx.x != 0) return false;
    if (LEVEL == Level::THREAD) return threadIdx.x == 0;
    if (LEVEL == Level::WARP) return threadIdx.x < WARP_SIZE;
    return true;
}

// Every thread of the level calls everything, as the rules allow: one signal is sent.
template <Level LEVEL>
__device__ void send(uintptr_t data_req, uintptr_t signal_req, int targets, uint32_t dst, uint32_t src, size_t size,
                     bool wait_completion) {
    if (!takes_part<LEVEL>()) return;
    for (int i = 0; i < targets; ++i) {
        nixlGpuPostSingleWriteXferReq<LEVEL>(reinterpret_cast<nixlGpuXferReqH>(data_req), dst, src, i, size, 0,
                                             wait_completion);
        nixlGpuPostSignalXferReq<LEVEL>(reinterpret_cast<nixlGpuXferReqH>(signal_req), 8, 3, i, 0, wait_completion);
    }
}

extern "C" __global__ void send_at_level(int level, uintptr_t data_req, uintptr_t signal_req, int targets, uint32_t dst,
                                         uint32_t src, size_t size, bool wait_completion) {
    if (level == 0) send<Level::THREAD>(data_req, signal_req, targets, dst, src, size, wait_completion);
    if (level == 1) send<Level::WARP>(data_req, signal_req, targets, dst, src, size, wait_completion);
    if (level == 2) send<Level::BLOCK>(data_req, signal_req, targets, dst, src, size, wait_completion);
}

template <Level LEVEL>
__device__ void receive(const uint64_t* signal, uint64_t expected, const char* data, size_t size, char* out,
                        uint64_t* seen) {
    if (!takes_part<LEVEL>()) return;
    uint64_t value;
    do value = nixlGpuReadSignal<LEVEL>(signal);
    while (value < expected);
    const size_t step = LEVEL == Level::THREAD ? 1 : LEVEL == Level::WARP ? WARP_SIZE : blockDim.x;
    seen[threadIdx.x] = value;
    for (size_t i = threadIdx.x; i < size; i += step) out[i] = data[i];
}

extern "C" __global__ void receive_at_level(int level, const uint64_t* signal, uint64_t expected, const char* data,
                                            size_t size, char* out, uint64_t* seen) {
    if (level == 0) receive<Level::THREAD>(signal, expected, data, size, out, seen);
    if (level == 1) receive<Level::WARP>(signal, expected, data, size, out, seen);
    if (level == 2) receive<Level::BLOCK>(signal, expected, data, size, out, seen);
}

template <Level LEVEL>
__device__ void put(const nixlMemViewElem& src, const nixlMemViewElem& dst, const nixlMemViewElem& counter, size_t size,
                    int* statuses) {
    if (!takes_part<LEVEL>()) return;
    __shared__ nixlGpuXferStatusH xfer_status;
    const nixl_status_t posted = nixlPut<LEVEL>(src, dst, size, 0, nixl_gpu_flags::defer, &xfer_status);
    nixl_status_t done = posted;
    while (done == NIXL_IN_PROG) done = nixlGpuGetXferStatus<LEVEL>(xfer_status);
    const nixl_status_t added = nixlAtomicAdd<LEVEL>(5, counter);
    if (threadIdx.x != 0) return;
    statuses[0] = posted;
    statuses[1] = done;
    statuses[2] = added;
}

extern "C" __global__ void put_at_level(int level, nixlMemViewH local, nixlMemViewH remote, size_t src_index,
                                        size_t src_offset, size_t dst_index, size_t dst_offset, size_t counter_index,
                                        size_t counter_offset, size_t size, int* statuses) {
    const nixlMemViewElem src{local, src_index, src_offset}, dst{remote, dst_index, dst_offset};
    const nixlMemViewElem counter{remote, counter_index, counter_offset};
    if (level == 0) put<Level::THREAD>(src, dst, counter, size, statuses);
    if (level == 1) put<Level::WARP>(src, dst, counter, size, statuses);
    if (level == 2) put<Level::BLOCK>(src, dst, counter, size, statuses);
}

extern "C" __global__ void get_pointers(nixlMemViewH remote, int count, uint64_t* out) {
    for (int i = 0; i < count; ++i) out[i] = reinterpret_cast<uint64_t>(nixlGetPtr(remote, i));
}

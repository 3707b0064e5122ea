// Write and signal with the names of NIXL 1.0 and later: entries of memory views stand where this course has pointers.
// Entry 0 of `local` is the source; entry 0 of `remote` is the target, entry 1 the signal. Notebooks 01b and 02 run it.
#include <ep/nixl_device.cuh>

constexpr auto WARP = nixl_gpu_level_t::WARP;

// One warp: all 32 lanes share the write; the addition is posted once, after what all of them have written.
extern "C" __global__ void put_and_signal(nixlMemViewH local, nixlMemViewH remote, size_t size) {
    if (blockIdx.x != 0 || threadIdx.x >= WARP_SIZE) return;
    nixlPut<WARP>({local, 0, 0}, {remote, 0, 0}, size);
    nixlAtomicAdd<WARP>(1, {remote, 1, 0});
}

// DELIBERATELY WRONG, for the checker, and by one thread: the signal is posted before the write that it announces.
extern "C" __global__ void signal_first(nixlMemViewH local, nixlMemViewH remote, size_t size) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    nixlAtomicAdd(1, {remote, 1, 0});
    nixlPut({local, 0, 0}, {remote, 0, 0}, size);
}

// The other side: waits for the signal, then copies what it finds.
extern "C" __global__ void wait_and_copy(const uint64_t* signal, const char* data, char* out, size_t size) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    while (ep::read_signal(signal) < 1) {
    }
    for (size_t i = 0; i < size; ++i) out[i] = data[i];
}

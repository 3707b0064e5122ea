// The kernels that play01_all_to_all.py gives to the learner. They do the same as those of
// tutorial_kernels/01_write_signal.cu, without the learner's own header.
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void write_signal_warp(char* target, const char* source, size_t bytes, uint64_t* signal,
                                             int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    ep::put_warp(target, source, bytes, peer);
    __syncwarp();
    if (threadIdx.x == 0) ep::signal_add(signal, 1, peer);
}

extern "C" __global__ void wait_and_read(const uint64_t* signal, uint64_t expected, const char* data, size_t bytes,
                                         char* out, int peer) {
    if (blockIdx.x != 0) return;
    if (!ep::wait_until_ge_block(signal, expected, {ep::kPhaseSignal, peer, -1})) return;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = data[i];
}

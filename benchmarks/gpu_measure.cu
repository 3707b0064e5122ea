// What gpu_measure.py times: bare stores, loads and signals between two GPUs.
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

// All ranks leave at once, and late enough for the host to have queued what follows.
extern "C" __global__ void meet(uint64_t* flags, uint64_t round, uint64_t hold_ns) {
    const int peer = threadIdx.x;
    bool failed = false;
    if (peer < ep::num_ranks()) {
        ep::signal_set(flags + ep::rank(), round, peer);
        failed = !ep::wait_until_ge(flags + peer, round, {ep::kPhaseSignal, peer, -1});
    }
    // All threads are through before any holds: lanes of a warp that part may run one after the other, and a lane that
    // began to hold while another still waited made this kernel last twice as long.
    if (__syncthreads_or(failed) || threadIdx.x != 0) return;
    const uint64_t begin = ep::globaltimer_ns();
    while (ep::globaltimer_ns() - begin < hold_ns) {
    }
}
extern "C" __global__ void put_slices(char* mine, const char* data, size_t bytes, int peer) {
    const size_t slice = (bytes / gridDim.x + 15) / 16 * 16, begin = blockIdx.x * slice;
    if (begin < bytes) ep::put_block(mine + begin, data + begin, min(slice, bytes - begin), peer);
}
extern "C" __global__ void get_slices(char* out, char* mine, size_t bytes, int peer) {
    const size_t slice = (bytes / gridDim.x + 15) / 16 * 16, begin = blockIdx.x * slice;
    if (begin < bytes)
        ep::copy_bytes<ep::kBlockUnroll>(out + begin, ep::peer_ptr(mine + begin, peer), min(slice, bytes - begin),
                                         threadIdx.x, blockDim.x);
}
extern "C" __global__ void ping(char* mine, const char* data, size_t bytes, uint64_t* flag, uint64_t before, int rounds,
                                int peer) {
    for (uint64_t round = before + 1; round <= before + rounds; ++round) {
        ep::put_block(mine, data, bytes, peer);
        __syncthreads();
        if (threadIdx.x == 0) ep::signal_set(flag, round, peer);
        if (!ep::wait_until_ge_block(flag, round, {ep::kPhaseSignal, peer, -1})) return;
    }
}
extern "C" __global__ void answer(uint64_t* flag, uint64_t before, int rounds, int peer) {
    for (uint64_t round = before + 1; round <= before + rounds; ++round) {
        if (!ep::wait_until_ge(flag, round, {ep::kPhaseSignal, peer, -1})) return;
        ep::signal_set(flag, round, peer);
    }
}

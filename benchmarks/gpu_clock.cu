// Makes all ranks begin at the same moment (gpu_clock.py).
#include <ep/signal.cuh>
#include <ep/wait.cuh>

// A barrier that all ranks leave at once, late enough for the host to have queued what follows.
extern "C" __global__ void begin_together(uint64_t* flags, uint64_t round, uint64_t hold_ns) {
    const int peer = threadIdx.x;
    bool failed = false;
    if (peer < ep::num_ranks()) {
        ep::signal_set(flags + ep::rank(), round, peer);
        failed = !ep::wait_until_ge(flags + peer, round, {ep::kPhaseSignal, peer, -1});
    }
    // No thread holds before all have finished waiting: diverged lanes of a warp may run one after the other, and a lane
    // that began to hold while another still waited made this kernel take twice as long.
    if (__syncthreads_or(failed) || threadIdx.x != 0) return;
    const uint64_t begin = ep::globaltimer_ns();
    while (ep::globaltimer_ns() - begin < hold_ns) {
    }
}

// The kernels of benchmarks/proxy_gpu.py.
#include <ep/proxy_operations.cuh>
#include <ep/sealed_ring.cuh>

// Block b, one warp or one thread, pushes its share of writes of `bytes` bytes into ring b and waits until they are done: a
// warp 32 at once, a thread one after the other. `descending`: from the last one to the first, so that no copy continues
// the one before it and each stays a copy of its own. `clock_ns` [2 * blocks]: when each block began and ended, so that
// neither compiling nor a launch by Python counts.
extern "C" __global__ void push_writes(const ep::ProxyRing* rings, char* target, const char* source, size_t bytes,
                                       int commands, int descending, int peer, uint64_t* clock_ns) {
    const ep::ProxyRing ring = rings[blockIdx.x];  // in registers
    if (threadIdx.x == 0) clock_ns[2 * blockIdx.x] = ep::globaltimer_ns();
    const int lanes = static_cast<int>(blockDim.x);
    bool ok = true;
    for (int first = 0; first < commands && ok; first += lanes) {
        const int i = first + static_cast<int>(threadIdx.x);
        const size_t at = (static_cast<size_t>(blockIdx.x) * commands + (descending ? commands - 1 - i : i)) * bytes;
        const ep::ProxyCommand command = ep::proxy_write(target + at, source + at, bytes, peer);
        const int count = commands - first < lanes ? commands - first : lanes;
        ok = lanes == 1 ? ep::sealed::push(ring, command) : ep::sealed::push_warp(ring, command, count);
    }
    if (ok && threadIdx.x == 0) ep::sealed::flush(ring);
    if (threadIdx.x == 0) clock_ns[2 * blockIdx.x + 1] = ep::globaltimer_ns();
}

// Cycles from a push of a command that does nothing until this thread sees that it is done. `clock_ns` [2], as above.
extern "C" __global__ void round_trips(const ep::ProxyRing* rings, int times, int64_t* cycles, uint64_t* clock_ns) {
    const ep::ProxyRing ring = rings[0];
    clock_ns[0] = ep::globaltimer_ns();
    for (int i = 0; i < times; ++i) {
        const int64_t begin = clock64();
        uint64_t number;
        if (!ep::sealed::push(ring, ep::proxy_command(ep::kProxyNothing, 0), &number)) return;
        if (!ep::sealed::wait(ring, number)) return;
        cycles[i] = clock64() - begin;
    }
    clock_ns[1] = ep::globaltimer_ns();
}

// Data and signal to the peer's GPU by its proxy, and an answer by the same way. `cycles` [times], `clock_ns` [2].
extern "C" __global__ void ping_pong(const ep::ProxyRing* rings, uint64_t* inbox, const uint64_t* outbox,
                                     uint64_t* signal, int times, int begins, int peer, int64_t* cycles,
                                     uint64_t* clock_ns) {
    const ep::ProxyRing ring = rings[0];
    clock_ns[0] = ep::globaltimer_ns();
    for (int i = 0; i < times; ++i) {
        const int64_t begin = clock64();
        const ep::ProxyCommand command =
            ep::proxy_write_signal(inbox, outbox, sizeof(uint64_t), signal, i + 1, false, peer);
        if (begins && !ep::sealed::push(ring, command)) return;
        if (!ep::wait_until_ge(signal, i + 1, {ep::kPhaseSignal, peer, -1})) return;
        if (!begins && !ep::sealed::push(ring, command)) return;
        cycles[i] = clock64() - begin;
    }
    clock_ns[1] = ep::globaltimer_ns();
}

// Small programs for tests of virtual time, in one kernel so that they compile once.
#include <ep/net.cuh>
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/trace.cuh>
#include <ep/wait.cuh>

enum Program {
    kPuts,      // rank 0 puts `bytes` to rank 1, `times` times, and waits for all
    kIncast,    // every rank but 0 puts to rank 0
    kPingPong,  // ranks 0 and 1 add to each other's flag in turns
    kGet,       // rank 0 gets from rank 1
    kOvertake,  // rank 0: a put and an add behind it on the same queue pair
    kFenced,    // the same with a fence between
    kAdds,      // every rank adds to rank 0's counter
    kCopy,      // every thread of every block copies its part, on its own rank
    kStore,     // rank 0 stores to rank 1's memory over NVLink, and signals; rank 1 waits
    kAllToAll,  // every rank puts with a signal to all, and waits for all
    kSleep,     // looks at the clock, sleeps, and looks again
};

extern "C" __global__ void timed(int program, char* data, char* source, uint64_t* flag, uint64_t* out, size_t bytes,
                                 int times) {
    const int me = ep::rank(), ranks = ep::num_ranks(), thread = ep::thread_in_block();
    const bool first = thread == 0 && blockIdx.x == 0;
    switch (program) {
        case kPuts:
        case kIncast:
            if (!first || (program == kPuts ? me != 0 : me == 0)) break;
            for (int i = 0; i < times; ++i) ep::net_put_nbi(data, source, bytes, program == kPuts ? 1 : 0);
            ep::net_quiet();
            break;
        case kPingPong:
            if (!first || me > 1) break;
            for (int i = 1; i <= times; ++i) {
                if (me == 0) ep::net_atomic_add_u64_nbi(flag, 1, 1);
                if (!ep::wait_until_ge(flag, i, {ep::kPhaseSignal, 1 - me, -1})) return;
                if (me == 1) ep::net_atomic_add_u64_nbi(flag, 1, 0);
            }
            break;
        case kGet:
            if (!first || me != 0) break;
            ep::net_get_nbi(data, source, bytes, 1);
            ep::net_quiet();
            break;
        case kOvertake:
        case kFenced:
            if (!first || me != 0) break;
            ep::net_put_nbi(data, source, bytes, 1);
            if (program == kFenced) ep::net_fence(1);
            ep::net_atomic_add_u64_nbi(flag, 1, 1);
            break;
        case kAdds:
            if (!first) break;
            for (int i = 0; i < times; ++i) ep::net_atomic_add_u64_nbi(flag, 1, 0);
            break;
        case kCopy: {
            const size_t part = bytes / gridDim.x;
            for (int i = 0; i < times; ++i) {
                ep::put_block(data + blockIdx.x * part, source + blockIdx.x * part, part, me);
                __syncthreads();
            }
            break;
        }
        case kStore:
            if (me == 0) {
                ep::put_block(data, source, bytes, 1);
                __syncthreads();
                if (first) ep::signal_set(flag, 1, 1);
            } else if (me == 1 && first) {
                ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, -1});
                out[0] = ep::globaltimer_ns();
            }
            break;
        case kAllToAll:
            if (thread != 0) break;
            for (int peer = 0; peer < ranks; ++peer) {
                ep::trace_value("peer", peer);
                ep::net_put_signal_nbi(data + (blockIdx.x * ranks + me) * bytes, source + blockIdx.x * bytes, bytes,
                                       flag, 1, peer, blockIdx.x % ep::num_queue_pairs());
            }
            ep::wait_until_ge(flag, ranks * gridDim.x, {ep::kPhaseSignal, -1, -1});
            break;
        case kSleep:
            if (!first) break;
            out[0] = ep::globaltimer_ns();
            ep::sleep_ns(1000);
            out[1] = ep::globaltimer_ns();
            break;
    }
}

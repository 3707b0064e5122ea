// The kernel of `ep-lib bench p2p` for GPUs, over every transport: round trips by <ep/net.cuh>.
#include <ep/net.cuh>

#include "p2p_slices.cuh"

// A message goes out as gridDim.x slices, each with a signal that adds 1; the answer, of the same size, leaves when all
// have arrived. `signal` continues from `base`, so it needs no reset. All blocks must be resident at once. `totals` [2
// x blocks]: cycles and nanoseconds of each block for all rounds.
extern "C" __global__ void __launch_bounds__(1024)
    ping_pong_blocks(char* inbox, const char* outbox, size_t bytes, uint64_t* signal, uint64_t base, int rounds,
                     int peer, int first, int64_t* totals) {
    const Slice mine = slice_of(bytes);
    const int64_t begin = clock64();
    const uint64_t begin_ns = ep::globaltimer_ns();
    for (int round = 1; round <= rounds; ++round) {
        const uint64_t expected = base + static_cast<uint64_t>(round) * gridDim.x;
        for (int turn = 0; turn < 2; ++turn) {
            if ((turn == 0) == (first != 0)) {
                ep::net_put_signal_nbi_block(inbox + mine.begin, outbox + mine.begin, mine.bytes, signal, 1, peer);
            } else if (!ep::wait_until_ge_block(signal, expected, {ep::kPhaseSignal, peer, -1})) {
                return;
            }
        }
    }
    if (threadIdx.x == 0) {
        ep::net_quiet(peer);
        count_time(begin, begin_ns, totals);
    }
}

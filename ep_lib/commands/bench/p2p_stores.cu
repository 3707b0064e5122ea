// Kernels of `ep-lib bench p2p` for peers in reach of loads and stores, for any transport: packets and bare stores.
#include <ep/packet.cuh>
#include <ep/put.cuh>

#include "p2p_slices.cuh"

namespace {

// One end of a conversation in packets: `send` and `wait` take the round's number; `wait` returns false after the limit.
template <typename Send, typename Wait>
EP_DEVICE void converse(Send send, Wait wait, uint64_t base, int rounds, int first, int64_t* totals) {
    const int64_t begin = clock64();
    const uint64_t begin_ns = ep::globaltimer_ns();
    if (first != 0) {
        for (uint64_t round = base + 1; round <= base + rounds; ++round) {
            send(round);
            if (!wait(round)) return;
        }
    } else {
        for (uint64_t round = base + 1; round <= base + rounds; ++round) {
            if (!wait(round)) return;
            send(round);
        }
    }
    if (ep::thread_in_block() == 0) count_time(begin, begin_ns, totals);
}

}  // namespace

// A message and its answer in packets, which carry their signal with them: `words` 64-bit words, one per thread of one
// block. `inbox`: this rank's; `their_inbox`: this rank's copy of the peer's inbox. The answer leaves when all packets
// have arrived.
extern "C" __global__ void __launch_bounds__(1024)
    ping_pong_packets(ep::TaggedWord* inbox, ep::TaggedWord* their_inbox, const uint64_t* outbox, uint64_t* received,
                      int words, uint64_t base, int rounds, int peer, int first, int64_t* totals) {
    const int mine = ep::thread_in_block();
    const uint64_t data = mine < words ? outbox[mine] : 0;
    uint64_t got = 0;
    const auto send = [&](uint64_t round) {
        if (mine < words) ep::send_packet(their_inbox + mine, data, round, peer);
    };
    const auto wait = [&](uint64_t round) {
        return mine >= words || ep::wait_packet(inbox + mine, round, &got, {ep::kPhaseSignal, peer, -1});
    };
    if (blockDim.x == ep::kWarpSize) {
        const auto wait_warp = [&](uint64_t round) { return __all_sync(ep::kFullWarp, wait(round)) != 0; };
        converse(send, wait_warp, base, rounds, first, totals);
    } else {
        const auto wait_block = [&](uint64_t round) { return __syncthreads_and(wait(round)) != 0; };
        converse(send, wait_block, base, rounds, first, totals);
    }
    if (mine < words) received[mine] = got;
}

// The ceiling: bare stores of all threads, no signal.
extern "C" __global__ void __launch_bounds__(1024)
    bare_stores(char* inbox, const char* outbox, size_t bytes, int peer) {
    const Slice mine = slice_of(bytes);
    ep::put_block(inbox + mine.begin, outbox + mine.begin, mine.bytes, peer);
}

// What `ep-lib bench p2p` times on GPUs: messages there and back, over whatever stands behind <ep/net.cuh>.
#include <ep/net.cuh>
#include <ep/packet.cuh>

namespace {

// The part of a message that a block sends, a multiple of 16 bytes but for the last.
struct Slice {
    size_t begin, bytes;
};
EP_DEVICE Slice slice_of(size_t bytes) {
    const size_t each = (bytes / gridDim.x + 15) / 16 * 16, begin = min(bytes, blockIdx.x * each);
    return {begin, blockIdx.x + 1 == gridDim.x ? bytes - begin : min(each, bytes - begin)};
}

// Nanoseconds and cycles from the first block's begin to the last one's end; `totals` begins as {0, 0}, `start` as ~0.
EP_DEVICE void count_time(int64_t begin, uint64_t begin_ns, int64_t* totals) {
    totals[2 * blockIdx.x] = clock64() - begin;
    totals[2 * blockIdx.x + 1] = static_cast<int64_t>(ep::globaltimer_ns() - begin_ns);
}

}  // namespace

// A message goes there as gridDim.x slices, each with a signal that adds 1; the answer, of the same size, leaves when
// all have come. `signal` counts on from `base`, so that no reset is needed. All blocks must be resident at once.
// `totals` [2 x blocks]: cycles and nanoseconds of each block for all rounds.
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

// The same by one block in packets, which bring their signal with them: `words` 64-bit words, one a thread. For peers
// that loads and stores reach. `inbox` is where this rank receives, `their_inbox` this rank's copy of where the peer does.
extern "C" __global__ void __launch_bounds__(1024)
    ping_pong_packets(ep::TaggedWord* inbox, ep::TaggedWord* their_inbox, const uint64_t* outbox, uint64_t* received,
                      int words, uint64_t base, int rounds, int peer, int first, int64_t* totals) {
    const int mine = ep::thread_in_block();
    const uint64_t data = mine < words ? outbox[mine] : 0;
    uint64_t got = 0;
    const int64_t begin = clock64();
    const uint64_t begin_ns = ep::globaltimer_ns();
    for (uint64_t round = base + 1; round <= base + rounds; ++round) {
        for (int turn = 0; turn < 2; ++turn) {
            if ((turn == 0) == (first != 0)) {
                if (mine < words) ep::send_packet(their_inbox + mine, data, round, peer);
            } else {
                bool ok = true;
                if (mine < words) ok = ep::wait_packet(inbox + mine, round, &got, {ep::kPhaseSignal, peer, -1});
                // The answer leaves when all packets are there; one warp needs no more than its own lanes.
                if (blockDim.x == ep::kWarpSize ? !__all_sync(ep::kFullWarp, ok) : !__syncthreads_and(ok)) return;
            }
        }
    }
    if (mine < words) received[mine] = got;
    if (mine == 0) count_time(begin, begin_ns, totals);
}

// How far each line of this GPU's memory is from the multiprocessor that asks: cycles of a load that its L2 answers. L2
// lies in parts; a line's place in it is the hardware's choice, and a poll of a far line takes longer. Each load waits for
// the one before; words are smaller than 2^63.
extern "C" __global__ void line_latencies(const char* lines, int count, size_t stride, int64_t* cycles) {
    constexpr int kTries = 6, kChain = 8;
    if (threadIdx.x != 0) return;
    for (int line = 0; line < count; ++line) {
        const uint64_t* const word = reinterpret_cast<const uint64_t*>(lines + line * stride);
        cycles[line] = 1 << 30;
        for (int attempt = 0; attempt < kTries; ++attempt) {
            uint64_t seen = 0;
            const int64_t begin = clock64();
            for (int i = 0; i < kChain; ++i) seen = ep::ld_relaxed_sys_u64(word + (seen >> 63));
            const int64_t each = (clock64() - begin + static_cast<int64_t>(seen >> 63)) / kChain;
            if (each < cycles[line]) cycles[line] = each;
        }
    }
}

// The ceiling: bare stores of all threads, no signal.
extern "C" __global__ void __launch_bounds__(1024)
    bare_stores(char* inbox, const char* outbox, size_t bytes, int peer) {
    const Slice mine = slice_of(bytes);
    ep::put_block(inbox + mine.begin, outbox + mine.begin, mine.bytes, peer);
}

// Kernels of 08_fp8_and_low_latency.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
#include <ep/packet.cuh>

#include "08_fp8_and_low_latency.cuh"

namespace {

// Data and tag, side by side.
EP_DEVICE void send_in_two_stores(ep::TaggedWord* mine, uint64_t data, uint64_t tag, int peer) {
    ep::TaggedWord* const packet = ep::peer_ptr(mine, peer);
    ep::st_relaxed_sys_u64(&packet->data, data);
    ep::st_relaxed_sys_u64(&packet->tag, tag);
}

// There and back like ping_pong_packets; kOwnTag: the tag is the round's, not the same one every time.
template <bool kOneStore, bool kOwnTag>
EP_DEVICE void ping_pong(ep::TaggedWord* inbox, const uint64_t* source, uint64_t* out, int words, int rounds,
                         int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    for (int round = 0; round < rounds; ++round) {
        const uint64_t tag = kOwnTag ? round + 1 : 1;
        for (int half = 0; half < 2; ++half) {
            for (int i = ep::lane_id(); i < words; i += ep::kWarpSize) {
                if (half != ep::rank() % 2) {
                    if (!ep::wait_packet(inbox + i, tag, out + round * words + i, {ep::kPhaseSignal, peer, round}))
                        return;
                } else if (kOneStore) {
                    ep::send_packet(inbox + i, source[round * words + i], tag, peer);
                } else {
                    send_in_two_stores(inbox + i, source[round * words + i], tag, peer);
                }
            }
        }
    }
}

}  // namespace

// WRONG: data and tag in two stores, side by side. Nothing keeps the tag behind the data: a reader of the new tag may
// find old data.
extern "C" __global__ void ping_pong_two_stores(ep::TaggedWord* inbox, const uint64_t* source, uint64_t* out, int words,
                                                int rounds, int peer) {
    ping_pong<false, true>(inbox, source, out, words, rounds, peer);
}

// WRONG: the same tag in every round. From the second round on, the packet of the first one is taken for the new one.
extern "C" __global__ void ping_pong_same_tag(ep::TaggedWord* inbox, const uint64_t* source, uint64_t* out, int words,
                                              int rounds, int peer) {
    ping_pong<true, false>(inbox, source, out, words, rounds, peer);
}

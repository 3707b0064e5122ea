// Packets: eight bytes of data and their own signal in one store.
//
// A signal after data costs time: the release waits until the data has arrived and been acknowledged, a round trip over
// the link, before the signal may leave. A packet needs no order, since one 16-byte store brings both: data, and a tag
// that says which epoch it belongs to. (One access of type .b128, that is: PTX models a vector access such as .v2.b64 as
// two.) Half of what crosses the link is tags, so packets are for small and urgent data: 64 bytes are eight packets, sent
// and awaited by eight lanes at once. NCCL's LL protocol does the same with 4 + 4 bytes.
//
// A packet orders nothing but itself: data written before it by ordinary stores is NOT published. The tag must be one
// that the packet's place in memory has not held before: a number that only grows, such as an epoch.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

namespace ep {

struct alignas(16) TaggedWord {
    uint64_t data;
    uint64_t tag;
};

// One thread sends one packet to the peer's copy of *mine.
EP_DEVICE void send_packet(TaggedWord* mine, uint64_t data, uint64_t tag, int peer) {
    st_relaxed_sys_u64x2(&peer_ptr(mine, peer)->data, data, tag);
}

// One thread waits for the packet with this tag. False after the limit: return from the kernel then.
EP_DEVICE bool wait_packet(const TaggedWord* packet, uint64_t tag, uint64_t* data, const WaitInfo& info) {
    uint64_t seen = 0;
    return look_until(
        [&] {
            ld_relaxed_sys_u64x2(&packet->data, data, &seen);
            return seen == tag;
        },
        [&] { record_fault(kFaultTimeout, info, seen, tag); });
}

// `words` 64-bit words by the lanes of one warp: word i is packet i. All lanes call with the same arguments.
EP_DEVICE void send_packets_warp(TaggedWord* mine, const uint64_t* source, int words, uint64_t tag, int peer) {
    for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
}

// The lanes wait for all of them and write the data to `target`; false, in all lanes, after the limit.
EP_DEVICE bool wait_packets_warp(const TaggedWord* packets, uint64_t* target, int words, uint64_t tag,
                                 const WaitInfo& info) {
    bool ok = true;
    for (int i = lane_id(); i < words && ok; i += kWarpSize) {
        uint64_t data = 0;
        ok = wait_packet(packets + i, tag, &data, info);
        if (ok) target[i] = data;
    }
    const bool all = __all_sync(kFullWarp, ok) != 0;
    __syncwarp();
    return all;
}

}  // namespace ep

// Exercise 08_packets, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (2 points): send a packet
    // `mine` is this rank's own copy: where is the peer's? One store for both words,
    // st_relaxed_sys_u64x2(address, first, second). Two stores of 8 bytes may arrive in either order.
    assert(!"Task 1 is still to do: send a packet");
    // end of TASK 1
}

// One thread waits for the packet with this tag. False after the limit: return from the kernel then.
EP_DEVICE bool wait_packet(const TaggedWord* packet, uint64_t tag, uint64_t* data, const WaitInfo& info) {
    // TASK 2 (4 points): wait for a packet
    // poll_until(done, gave_up) of <ep/wait.cuh> calls `done` until it is true, and `gave_up` after the limit:
    // both are lambdas, [&] { ... }. Look at a packet with one load for both words,
    // ld_relaxed_sys_u64x2(address, &first, &second): data that is loaded separately may be older than the tag.
    // Which tags are right: this one only, or larger ones too? When you give up, record_fault(kFaultTimeout,
    // info, seen, expected) says who waited for whom and which tag was there. (Keep one load in flight at a
    // time: with four, a round trip took 0.1 us longer on two H200.)
    assert(!"Task 2 is still to do: wait for a packet");
    return false;
    // end of TASK 2
}

// `words` 64-bit words by the lanes of one warp: word i is packet i. All lanes call with the same arguments.
EP_DEVICE void send_packets_warp(TaggedWord* mine, const uint64_t* source, int words, uint64_t tag, int peer) {
    // TASK 3 (2 points): a warp sends many
    // Lane l takes words l, l + 32, ...: packet i is word i, all with the same tag.
    assert(!"Task 3 is still to do: a warp sends many");
    // end of TASK 3
}

// The lanes wait for all of them and write the data to `target`; false, in all lanes, after the limit.
EP_DEVICE bool wait_packets_warp(const TaggedWord* packets, uint64_t* target, int words, uint64_t tag,
                                 const WaitInfo& info) {
    // TASK 4 (4 points): a warp waits for many
    // Each lane waits for packets l, l + 32, ... with wait_packet and writes their data to `target`. A lane
    // whose wait fails stops waiting, but it does not leave: all lanes return the same answer, and after true
    // each may read all of `target`, including what other lanes wrote. A vote (__all_sync) hands over the
    // answer, but orders no memory. What does?
    assert(!"Task 4 is still to do: a warp waits for many");
    return false;
    // end of TASK 4
}

}  // namespace ep

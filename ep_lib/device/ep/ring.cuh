// A bounded ring from one rank to another, over NICs: as much memory as you give it, as much data as you like.
//
//     sender                                                     receiver
//     1. wait for room: a credit for the slot
//     2. fill the slot in `staging`
//     3. post: staging -> slots, then the slot's signal  ---->   [slots] [arrived]
//                                                                4. wait until the message has arrived
//                                                                5. read it out of its slot
//                                      [credits]         <----   6. return a credit
//
// Messages are numbered 0, 1, 2, ...; message m uses slot m % num_slots on both sides. A slot is one message: a chunk of
// up to slot_bytes bytes, so small items are gathered until the slot is full; the last, shorter one is the flush.
//
// A credit says two things at once. The receiver has read the slot, so the next message may be put there. And since the
// data has arrived, the sender's NIC has read the staging slot: it may be filled again, and no quiet is needed.
//
// Every slot has a signal of its own: the number of the message that lies in it, plus 1. It is set by the put that
// brings the data (net_put_signal_nbi), so it is never seen before its data, on RC or on SRD. A single signal for the
// whole ring, to which each put adds 1, would work on RC only: on SRD message 5 may overtake message 4, and a count of
// 5 would not say which five have come. Credits are a single counter all the same: the receiver reads messages in
// order, so in whatever order its adds arrive, n credits mean that the first n messages have been read.
//
// Counters start at zero with the symmetric memory and are never reset. Both sides keep the number of the next message
// from one kernel to the next, so a slow peer may still be finishing one operation while a fast one begins the next.
//
// Deadlock: a sender that waits for a credit makes no progress elsewhere. One slot is enough for a single ring; code
// that serves several rings asks ring_has_room of each and fills those that have room (<moe/pcie/rings.cuh> does).
#pragma once
#include <ep/net.cuh>
#include <ep/wait.cuh>

namespace ep {

// One end of a ring, as this rank names it: pointers to its own copies of symmetric arrays. The sender uses all of
// them; the receiver does not use `staging`. `arrived` and `credits` are zero before the first message.
struct Ring {
    int peer;           // the rank at the other end
    int queue_pair;     // for data and for credits
    int num_slots;      // at least 1
    size_t slot_bytes;  // the longest message; a multiple of 16
    char* staging;      // of the sender [num_slots, slot_bytes]: the only memory that its NIC reads
    char* slots;        // of the receiver [num_slots, slot_bytes]: the only memory that the sender's NIC writes
    uint64_t* arrived;  // of the receiver [num_slots]: the number of the message in each slot, plus 1
    uint64_t* credits;  // of the sender: how many messages the receiver has read
};

// The slot of a message, and where it begins in `staging` and in `slots`.
EP_DEVICE int64_t ring_slot(const Ring& ring, uint64_t message) { return message % ring.num_slots; }

EP_DEVICE char* ring_staging(const Ring& ring, uint64_t message) {
    return ring.staging + ring_slot(ring, message) * ring.slot_bytes;
}

EP_DEVICE char* ring_received(const Ring& ring, uint64_t message) {
    return ring.slots + ring_slot(ring, message) * ring.slot_bytes;
}

// ---- The sender ------------------------------------------------------------------------------------------------------

// How many messages must have been read before this one may be filled in: the one that used its slot before, and all
// earlier ones. The first num_slots need no credit.
EP_DEVICE uint64_t ring_credits_needed(const Ring& ring, uint64_t message) {
    const uint64_t slots = ring.num_slots;
    return message < slots ? 0 : message - slots + 1;
}

// Whether a message may be filled in now. One thread asks; a __syncwarp passes the answer's acquire on to the others.
EP_DEVICE bool ring_has_room(const Ring& ring, uint64_t message) {
    return ld_acquire_sys_u64(ring.credits) >= ring_credits_needed(ring, message);
}

// Waits until a message may be filled in. One thread calls. False after the time limit: return from the kernel then.
EP_DEVICE bool ring_wait_for_room(const Ring& ring, uint64_t message) {
    return wait_until_ge(ring.credits, ring_credits_needed(ring, message),
                         {kPhaseCredit, ring.peer, ring_slot(ring, message)});
}

// Sends the first `bytes` bytes of the message's staging slot, then its signal. One thread calls, after a __syncwarp
// with the lanes that filled the slot.
EP_DEVICE void ring_post(const Ring& ring, uint64_t message, size_t bytes) {
    net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes,
                       ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair,
                       NetSignal::kSet);
}

// ---- The receiver ----------------------------------------------------------------------------------------------------

// Waits until a message has arrived. One thread calls; `phase` is for the report of a wait that ran into its limit.
EP_DEVICE bool ring_wait_for_message(const Ring& ring, uint64_t message, Phase phase = kPhaseSignal) {
    return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                         {phase, ring.peer, ring_slot(ring, message)});
}

// Tells the sender that one more message has been read. One thread calls, after a __syncwarp with the lanes that read
// it.
EP_DEVICE void ring_return_credit(const Ring& ring) {
    // One count will do: messages are read in order.
    net_atomic_add_u64_nbi(ring.credits, 1, ring.peer, ring.queue_pair);
}

// ---- A whole warp at each end ----------------------------------------------------------------------------------------
// All 32 lanes call with the same arguments.

// Sends one message of 0 to slot_bytes bytes from `source`, any memory of this rank.
EP_DEVICE bool ring_send_warp(const Ring& ring, const void* source, size_t bytes, uint64_t message) {
    int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
    ok = __shfl_sync(kFullWarp, ok, 0);
    __syncwarp();  // the credit that lane 0 acquired is now all lanes'
    if (!ok) return false;
    copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
    __syncwarp();  // all lanes have filled in their part before the NIC may read it
    if (lane_id() == 0) ring_post(ring, message, bytes);
    return true;
}

// Takes one message of `bytes` bytes out of the ring and copies it to `target`, any memory of this rank.
EP_DEVICE bool ring_receive_warp(const Ring& ring, void* target, size_t bytes, uint64_t message) {
    int ok = lane_id() == 0 ? ring_wait_for_message(ring, message) : 0;
    ok = __shfl_sync(kFullWarp, ok, 0);
    __syncwarp();  // the message that lane 0 acquired is now all lanes'
    if (!ok) return false;
    copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
    __syncwarp();  // all lanes have read their part before the slot is given back
    if (lane_id() == 0) ring_return_credit(ring);
    return true;
}

// Sends `bytes` bytes in full messages and a last, shorter one: the flush. `*message` is the number of the next message,
// before and after.
EP_DEVICE bool ring_send_stream_warp(const Ring& ring, const void* source, size_t bytes, uint64_t* message) {
    const char* const from = static_cast<const char*>(source);
    for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++*message) {
        const size_t rest = bytes - at;
        if (!ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message)) return false;
    }
    return true;
}

// The other end of ring_send_stream_warp; both know `bytes`.
EP_DEVICE bool ring_receive_stream_warp(const Ring& ring, void* target, size_t bytes, uint64_t* message) {
    char* const to = static_cast<char*>(target);
    for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++*message) {
        const size_t rest = bytes - at;
        if (!ring_receive_warp(ring, to + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message)) return false;
    }
    return true;
}

}  // namespace ep

// Exercise 05_ring, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1a (3 points for 1a and 1b together): when is a slot free?
    // Message m uses slot m % num_slots. The first num_slots messages need no credit. A later one takes the slot
    // of message m - num_slots: how many messages have been read when the receiver has read that one, and all
    // before it? Counts are unsigned: mind what 0 - 1 is.
    assert(!"Task 1a is still to do: when is a slot free?");
    return 0;
    // end of TASK 1a
}

// Whether a message may be filled in now. One thread asks; a __syncwarp passes the answer's acquire on to the others.
EP_DEVICE bool ring_has_room(const Ring& ring, uint64_t message) {
    // TASK 1b (3 points for 1a and 1b together): when is a slot free?
    // Look at *ring.credits, do not wait. Which kind of load lets this thread use the slot after what it saw?
    assert(!"Task 1b is still to do: when is a slot free?");
    return false;
    // end of TASK 1b
}

// Waits until a message may be filled in. One thread calls. False after the time limit: return from the kernel then.
EP_DEVICE bool ring_wait_for_room(const Ring& ring, uint64_t message) {
    return wait_until_ge(ring.credits, ring_credits_needed(ring, message),
                         {kPhaseCredit, ring.peer, ring_slot(ring, message)});
}

// Sends the first `bytes` bytes of the message's staging slot, then its signal. One thread calls, after a __syncwarp
// with the lanes that filled the slot.
EP_DEVICE void ring_post(const Ring& ring, uint64_t message, size_t bytes) {
    // TASK 2 (2 points): post a message with its signal
    // One operation that brings the data and then the signal: net_put_signal_nbi(target, source, bytes, signal,
    // value, peer, queue pair, NetSignal::kSet). The data goes from this message's staging slot to its slot at
    // the receiver (ring_staging, ring_received: name your own copy). The signal is the slot's own, ring.arrived
    // + ring_slot(ring, message), and it says which message lies there: its number plus 1. Why would one count
    // for all slots not work on EFA?
    assert(!"Task 2 is still to do: post a message with its signal");
    // end of TASK 2
}

// ---- The receiver ----------------------------------------------------------------------------------------------------

// Waits until a message has arrived. One thread calls; `phase` is for the report of a wait that ran into its limit.
EP_DEVICE bool ring_wait_for_message(const Ring& ring, uint64_t message, Phase phase = kPhaseSignal) {
    // TASK 3a (2 points for 3a and 3b together): wait for a message, return its credit
    // wait_until_ge(pointer, expected, {phase, ring.peer, ring_slot(ring, message)}): which signal, and what
    // does it show once this message lies in its slot?
    assert(!"Task 3a is still to do: wait for a message, return its credit");
    return false;
    // end of TASK 3a
}

// Tells the sender that one more message has been read. One thread calls, after a __syncwarp with the lanes that read
// it.
EP_DEVICE void ring_return_credit(const Ring& ring) {
    // TASK 3b (2 points for 3a and 3b together): wait for a message, return its credit
    // Adds 1 to the sender's ring.credits, through the NIC: net_atomic_add_u64_nbi(counter, value, peer, queue
    // pair).
    assert(!"Task 3b is still to do: wait for a message, return its credit");
    // end of TASK 3b
}

// ---- A whole warp at each end ----------------------------------------------------------------------------------------
// All 32 lanes call with the same arguments.

// Sends one message of 0 to slot_bytes bytes from `source`, any memory of this rank.
EP_DEVICE bool ring_send_warp(const Ring& ring, const void* source, size_t bytes, uint64_t message) {
    // TASK 4a (4 points for 4a and 4b together): a warp at each end
    // Lane 0 waits for room and posts, all lanes copy `bytes` bytes into ring_staging(ring, message). Hand lane
    // 0's answer to all (__shfl_sync(kFullWarp, ok, 0)); if it is false, return false. Where is a __syncwarp
    // needed, so that no slot is filled before it is free, and nothing is posted before it is filled?
    assert(!"Task 4a is still to do: a warp at each end");
    return false;
    // end of TASK 4a
}

// Takes one message of `bytes` bytes out of the ring and copies it to `target`, any memory of this rank.
EP_DEVICE bool ring_receive_warp(const Ring& ring, void* target, size_t bytes, uint64_t message) {
    // TASK 4b (4 points for 4a and 4b together): a warp at each end
    // The mirror image: lane 0 waits for the message and returns the credit, all lanes copy it from
    // ring_received(ring, message) to `target`. When may the slot be given back?
    assert(!"Task 4b is still to do: a warp at each end");
    return false;
    // end of TASK 4b
}

// Sends `bytes` bytes in full messages and a last, shorter one: the flush. `*message` is the number of the next message,
// before and after.
EP_DEVICE bool ring_send_stream_warp(const Ring& ring, const void* source, size_t bytes, uint64_t* message) {
    // TASK 5a (2 points for 5a and 5b together): streams: full messages, and a flush
    // Cut `bytes` bytes into messages of ring.slot_bytes and send one after the other. The last one has what is
    // left; where nothing is left, none is sent. *message is the number of the next message: leave it right for
    // the next call. If a send fails, return false.
    assert(!"Task 5a is still to do: streams: full messages, and a flush");
    return false;
    // end of TASK 5a
}

// The other end of ring_send_stream_warp; both know `bytes`.
EP_DEVICE bool ring_receive_stream_warp(const Ring& ring, void* target, size_t bytes, uint64_t* message) {
    // TASK 5b (2 points for 5a and 5b together): streams: full messages, and a flush
    // The other end cuts in the same way, so the length of a message need not be sent.
    assert(!"Task 5b is still to do: streams: full messages, and a flush");
    return false;
    // end of TASK 5b
}

}  // namespace ep

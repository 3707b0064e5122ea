// Exercise 01_write_signal, version 1. Leave this line: ep_lib reads it.
// Write, then signal: the pattern that everything later builds on. The kernels of tutorial_kernels/01_write_signal.cu
// call these functions.
//
//     sender                                          receiver
//     1. write the data into the peer's memory  ->    [data]
//     2. add to the peer's signal               ->    [signal]
//                                                     3. wait until the signal has grown far enough
//                                                     4. read the data
//
// `target`, `signal` and the arrays of a Pipe are symmetric: a kernel names its own copy, and ep::peer_ptr (inside
// ep::put_* and ep::signal_add) finds the peer's. `source` is any memory of this rank.
//
// Exercise 01 replaces this file by the learner's, whose include root comes before the library's.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

namespace ep {

// One of several writes that share a signal.
struct Write {
    void* target;
    const void* source;
    size_t bytes;
};

// A ring of slots in the receiver's memory. Both sides pass their own copies of the same symmetric arrays.
struct Pipe {
    char* slots;        // num_slots x slot_bytes
    size_t slot_bytes;  // of one slot, and of one round's data
    int num_slots;
    uint64_t* arrived;  // the sender adds 1 to the receiver's when a round's data is complete
    uint64_t* credits;  // the receiver adds 1 to the sender's when it has taken a round out of its slot
};

// One thread writes `bytes` bytes into the peer's `target`, then adds `increment` to the peer's `signal`.
EP_DEVICE void write_and_signal_thread(void* target, const void* source, size_t bytes, uint64_t* signal,
                                       uint64_t increment, int peer) {
    // TASK 1 (2 points): one thread writes, then signals
    // Write the bytes into the peer's copy of `target`, then add `increment` to the peer's copy of `signal`.
    // <ep/put.cuh> has put_thread, <ep/signal.cuh> has signal_add; or write the loop yourself with
    // peer_ptr(pointer, peer). Which of the two must come first, and which of them must be a release?
    assert(!"Task 1 is still to do: one thread writes, then signals");
    // end of TASK 1
}

// Waits until this rank's `signal`, which `peer` adds to, has reached `expected`. What was written before may then be
// read. False if it did not come within the time limit: return from the kernel then. One thread calls, or many do.
EP_DEVICE bool wait_for_signal(const uint64_t* signal, uint64_t expected, int peer) {
    // TASK 2 (2 points): wait for a signal
    // Look at *signal until it is at least `expected`. Not "equal": the peer may be a round ahead when you look.
    // A plain load is not enough; ld_acquire_sys_u64 of <ep/memory.cuh> makes what came before the signal
    // visible. wait_until_ge of <ep/wait.cuh> does this with a time limit (WaitInfo says what the wait is about:
    // {kPhaseSignal, peer, -1}).
    assert(!"Task 2 is still to do: wait for a signal");
    return false;
    // end of TASK 2
}

// As write_and_signal_thread, by the 32 lanes of a warp together; all call with the same arguments. One signal is sent.
// A block may have two or three dimensions: a thread's lane is lane_id(), not threadIdx.x & 31.
EP_DEVICE void write_and_signal_warp(void* target, const void* source, size_t bytes, uint64_t* signal,
                                     uint64_t increment, int peer) {
    // TASK 3 (2 points): a warp writes, then signals
    // Each lane writes its share (put_warp of <ep/put.cuh>, or bytes lane_id(), lane_id() + kWarpSize, ...).
    // Then one lane sends the signal. What must happen between the two, so that the other lanes' bytes are there
    // as well?
    assert(!"Task 3 is still to do: a warp writes, then signals");
    // end of TASK 3
}

// A warp does `count` writes, of any sizes, under one signal: when the signal is seen, all of them are there.
EP_DEVICE void write_many_and_signal_warp(const Write* writes, int count, uint64_t* signal, uint64_t increment,
                                          int peer) {
    // TASK 4 (2 points): several writes under one signal
    // Do all the writes, then signal once. A write can have 0 bytes, and `count` can be 0: the signal is sent
    // all the same.
    assert(!"Task 4 is still to do: several writes under one signal");
    // end of TASK 4
}

// A warp sends the data of round 0, 1, 2, ... into slot round % num_slots of the peer's pipe. Before it overwrites a
// slot it waits until the peer has taken the previous round out of it. Counters only grow and start at zero. False
// after a wait that ran into its limit.
EP_DEVICE bool pipe_send_warp(const Pipe& pipe, const void* source, uint64_t round, int peer) {
    // TASK 5a (4 points for 5a and 5b together): a pipe of many rounds, with credits
    // Round r goes into slot r % num_slots (slot s begins at pipe.slots + s * pipe.slot_bytes). The first
    // num_slots rounds may go at once. For each later one, how many credits must *pipe.credits show before its
    // slot is free? wait_until_ge_warp of <ep/wait.cuh> waits as a warp. Then write, and add 1 to the peer's
    // pipe.arrived.
    assert(!"Task 5a is still to do: a pipe of many rounds, with credits");
    return false;
    // end of TASK 5a
}

// The other end: a warp waits for the data of a round, copies it from its slot to `target` (any memory of this rank),
// and gives the peer the credit to use the slot again. False after a wait that ran into its limit.
EP_DEVICE bool pipe_receive_warp(const Pipe& pipe, void* target, uint64_t round, int peer) {
    // TASK 5b (4 points for 5a and 5b together): a pipe of many rounds, with credits
    // Wait until the data of this round has arrived: what does *pipe.arrived show then? Copy it from its slot to
    // `target` (copy_bytes of <ep/put.cuh>, or a loop), and add 1 to the peer's pipe.credits. When has every
    // lane read its part?
    assert(!"Task 5b is still to do: a pipe of many rounds, with credits");
    return false;
    // end of TASK 5b
}

}  // namespace ep

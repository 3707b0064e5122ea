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
    // EXERCISE-BEGIN 1
    put_thread(target, source, bytes, peer);
    signal_add(signal, increment, peer);  // a release: it publishes this thread's stores before it
    // EXERCISE-END 1
}

// Waits until this rank's `signal`, which `peer` adds to, has reached `expected`. What was written before may then be
// read. False if it did not come within the time limit: return from the kernel then. One thread calls, or many do.
EP_DEVICE bool wait_for_signal(const uint64_t* signal, uint64_t expected, int peer) {
    // EXERCISE-BEGIN 2
    return wait_until_ge(signal, expected, {kPhaseSignal, peer, -1});
    // EXERCISE-END 2
}

// As write_and_signal_thread, by the 32 lanes of a warp together; all call with the same arguments. One signal is sent.
// A block may have two or three dimensions: a thread's lane is lane_id(), not threadIdx.x & 31.
EP_DEVICE void write_and_signal_warp(void* target, const void* source, size_t bytes, uint64_t* signal,
                                     uint64_t increment, int peer) {
    // EXERCISE-BEGIN 3
    put_warp(target, source, bytes, peer);
    __syncwarp();  // lane 0's release covers the other lanes' stores only if they come before it
    if (lane_id() == 0) signal_add(signal, increment, peer);
    // EXERCISE-END 3
}

// A warp does `count` writes, of any sizes, under one signal: when the signal is seen, all of them are there.
EP_DEVICE void write_many_and_signal_warp(const Write* writes, int count, uint64_t* signal, uint64_t increment,
                                          int peer) {
    // EXERCISE-BEGIN 4
    for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
    __syncwarp();  // once, for all writes
    if (lane_id() == 0) signal_add(signal, increment, peer);
    // EXERCISE-END 4
}

// A warp sends the data of round 0, 1, 2, ... into slot round % num_slots of the peer's pipe. Before it overwrites a
// slot it waits until the peer has taken the previous round out of it. Counters only grow and start at zero. False
// after a wait that ran into its limit.
EP_DEVICE bool pipe_send_warp(const Pipe& pipe, const void* source, uint64_t round, int peer) {
    // EXERCISE-BEGIN 5a
    const uint64_t slots = pipe.num_slots;
    const uint64_t slot = round % slots;
    if (round >= slots && !wait_until_ge_warp(pipe.credits, round - slots + 1, {kPhaseCredit, peer, int64_t(slot)}))
        return false;
    write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
    return true;
    // EXERCISE-END 5a
}

// The other end: a warp waits for the data of a round, copies it from its slot to `target` (any memory of this rank),
// and gives the peer the credit to use the slot again. False after a wait that ran into its limit.
EP_DEVICE bool pipe_receive_warp(const Pipe& pipe, void* target, uint64_t round, int peer) {
    // EXERCISE-BEGIN 5b
    const uint64_t slot = round % pipe.num_slots;
    if (!wait_until_ge_warp(pipe.arrived, round + 1, {kPhaseSignal, peer, int64_t(slot)})) return false;
    copy_bytes<kWarpUnroll>(target, pipe.slots + slot * pipe.slot_bytes, pipe.slot_bytes, lane_id(), kWarpSize);
    __syncwarp();  // all lanes have read their part before the slot is given back
    if (lane_id() == 0) signal_add(pipe.credits, 1, peer);
    return true;
    // EXERCISE-END 5b
}

}  // namespace ep

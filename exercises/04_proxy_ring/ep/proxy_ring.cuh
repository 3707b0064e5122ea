// Exercise 04_proxy_ring, version 2. Leave this line: ep_lib reads it.
// Commands from a kernel to a thread of the host, the proxy, which carries them out: a lock-free ring in memory that both
// see. <ep/proxy_command.cuh> has the structs.
//
//     kernel (any thread)                                        proxy (one thread for each ring)
//     1. reserve a number: head += 1
//     2. wait for room: taken > number - num_slots
//     3. fill the slot, then its `number` with release  ---->    4. acquires the slot's `number`
//                                                                5. copies the command out of the slot
//     next round in this slot                    taken  <----    6. returns the credit
//                                                                7. posts it
//     proxy_flush                            completed  <----    8. it and all before it are done
//
// Many threads may push into a ring. A slot says itself when it is full, so a slow thread holds up those behind it, loses
// nothing, and needs no lock. Exercise 04_proxy_ring replaces this file by the learner's.
#pragma once
#include <ep/peer.cuh>
#include <ep/proxy_command.cuh>
#include <ep/wait.cuh>

namespace ep {

// One thread waits until the slot of command `number` is free. `peer`: whom the command is for, which the report of a wait
// that gave up names. False after the time limit.
EP_DEVICE bool proxy_wait_for_room(const ProxyRing& ring, uint64_t number, int peer) {
    // TASK 1 (3 points): wait for room
    // Command `number` takes the slot of command number - num_slots, which must have been taken: taken >= number
    // - num_slots + 1. The first num_slots commands find their slots empty; counts are unsigned. The credit is
    // ring.credits->taken, which the proxy releases at system scope. Wait with wait_until_ge(pointer, value,
    // {kPhaseProxy, peer, -1}), and return what it returns.
    assert(!"Task 1 is still to do: wait for room");
    return false;
    // end of TASK 1
}

// One thread fills the slot of command `number`, which is free, and publishes it: with what this thread wrote before, and
// what reached it through a barrier.
EP_DEVICE void proxy_fill(const ProxyRing& ring, const ProxyCommand& command, uint64_t number) {
    // TASK 2 (3 points): fill a slot and publish it
    // Slot number % num_slots of ring.slots. Its words target to queue_pair are the command's, and `number`
    // comes last: the proxy takes the slot when it says number + 1. It reads the other words right after that,
    // on a CPU: which store, at which scope?
    assert(!"Task 2 is still to do: fill a slot and publish it");
    // end of TASK 2
}

// One thread pushes a command; *number becomes its number. False after the time limit: return from the kernel then. The
// number stays reserved, so the ring is of no use after that.
EP_DEVICE bool proxy_push(const ProxyRing& ring, const ProxyCommand& command, uint64_t* number = nullptr) {
    // TASK 3 (2 points): push by one thread
    // Reserve a number (atom_add_relaxed_gpu_u64 on ring.producer->head), tell it to the caller if `number` is
    // not null, wait for room, fill. False if there is no room after the time limit.
    assert(!"Task 3 is still to do: push by one thread");
    return false;
    // end of TASK 3
}

// Pushes the commands of the first `count` lanes, in their order, with one reservation and one look at the credit. All 32
// lanes call.
EP_DEVICE bool proxy_push_warp(const ProxyRing& ring, const ProxyCommand& command, int count,
                               uint64_t* number = nullptr) {
    // TASK 4 (4 points): push by a warp
    // Lane 0 reserves `count` numbers with one addition, and waits until the LAST of them has room. All lanes
    // learn the first number and whether there is room (__shfl_sync), and what lane 0 acquired: which barrier?
    // Lane i fills the slot of first + i, if i < count. *number is first + lane. With count 0 nothing is
    // reserved, and the answer is true.
    assert(!"Task 4 is still to do: push by a warp");
    return false;
    // end of TASK 4
}

// One thread waits until a command is done, and all that have smaller numbers in its ring: the source may be overwritten
// then, and the target is written. False after the time limit.
EP_DEVICE bool proxy_wait(const ProxyRing& ring, uint64_t number) {
    // TASK 5a (2 points for 5a and 5b together): wait until commands are done
    // ring.credits->completed commands are done, those with the smallest numbers. How many are that when command
    // `number` is among them, the first of which has number 0? Wait as in task 1; no peer is meant (-1).
    assert(!"Task 5a is still to do: wait until commands are done");
    return false;
    // end of TASK 5a
}

// The same for all that was pushed into the ring before, by this thread or by threads that have synchronised with it.
EP_DEVICE bool proxy_flush(const ProxyRing& ring) {
    // TASK 5b (2 points for 5a and 5b together): wait until commands are done
    // How many commands were pushed up to now? ring.producer->head says so.
    assert(!"Task 5b is still to do: wait until commands are done");
    return false;
    // end of TASK 5b
}

}  // namespace ep

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
    // EXERCISE-BEGIN 1
    if (number < ring.num_slots) return true;  // the first round finds all slots empty
    const uint64_t needed = number - ring.num_slots + 1;
    return wait_until_ge(&ring.credits->taken, needed, {kPhaseProxy, peer, -1});
    // EXERCISE-END 1
}

// One thread fills the slot of command `number`, which is free, and publishes it: with what this thread wrote before, and
// what reached it through a barrier.
EP_DEVICE void proxy_fill(const ProxyRing& ring, const ProxyCommand& command, uint64_t number) {
    // EXERCISE-BEGIN 2
    ProxyCommand* const slot = ring.slots + number % ring.num_slots;
    slot->target = command.target;
    slot->source = command.source;
    slot->bytes = command.bytes;
    slot->signal = command.signal;
    slot->value = command.value;
    slot->op = command.op;
    slot->peer = command.peer;
    slot->queue_pair = command.queue_pair;
    slot->place = detail::call_site();
    st_release_sys_u64(&slot->number, number + 1);
    // EXERCISE-END 2
}

// One thread pushes a command; *number becomes its number. False after the time limit: return from the kernel then. The
// number stays reserved, so the ring is of no use after that.
EP_DEVICE bool proxy_push(const ProxyRing& ring, const ProxyCommand& command, uint64_t* number = nullptr) {
    // EXERCISE-BEGIN 3
    const uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
    if (number != nullptr) *number = mine;
    if (!proxy_wait_for_room(ring, mine, command.peer)) return false;
    proxy_fill(ring, command, mine);
    return true;
    // EXERCISE-END 3
}

// Pushes the commands of the first `count` lanes, in their order, with one reservation and one look at the credit. All 32
// lanes call.
EP_DEVICE bool proxy_push_warp(const ProxyRing& ring, const ProxyCommand& command, int count,
                               uint64_t* number = nullptr) {
    // EXERCISE-BEGIN 4
    const int lane = lane_id();
    unsigned long long first = 0;
    int ok = 1;
    if (lane == 0 && count > 0) {
        first = atom_add_relaxed_gpu_u64(&ring.producer->head, count);
        ok = proxy_wait_for_room(ring, first + count - 1, command.peer);
    }
    first = __shfl_sync(kFullWarp, first, 0);
    ok = __shfl_sync(kFullWarp, ok, 0);
    __syncwarp();  // all lanes have lane 0's credit now, and see its data
    if (number != nullptr) *number = first + lane;
    if (ok && lane < count) proxy_fill(ring, command, first + lane);
    return ok;
    // EXERCISE-END 4
}

// One thread waits until a command is done, and all that have smaller numbers in its ring: the source may be overwritten
// then, and the target is written. False after the time limit.
EP_DEVICE bool proxy_wait(const ProxyRing& ring, uint64_t number) {
    // EXERCISE-BEGIN 5a
    return wait_until_ge(&ring.credits->completed, number + 1, {kPhaseProxy, -1, -1});  // the first has number 0
    // EXERCISE-END 5a
}

// The same for all that was pushed into the ring before, by this thread or by threads that have synchronised with it.
EP_DEVICE bool proxy_flush(const ProxyRing& ring) {
    // EXERCISE-BEGIN 5b
    return wait_until_ge(&ring.credits->completed, ld_relaxed_gpu_u64(&ring.producer->head), {kPhaseProxy, -1, -1});
    // EXERCISE-END 5b
}

}  // namespace ep

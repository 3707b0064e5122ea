// Commands from a kernel to a thread of the host, the proxy, which carries them out: for NICs that a GPU cannot drive
// itself, and for the copy engine. The design is UCCL's: a lock-free ring in memory that host and GPU share.
//
//     kernel (any thread)                                        proxy (one thread for each ring)
//     1. reserve a number: head += 1
//     2. wait for room: taken > number - num_slots
//     3. fill the slot, then its `number` with release  ---->    4. acquires the slot's `number`
//                                                                5. copies the command out of the slot
//     next round in this slot                    taken  <----    6. returns the credit
//                                                                7. posts it: NIC, copy engine, shared memory
//     proxy_flush                            completed  <----    8. it and all before it are done
//
// Many threads may push into a ring, and its commands are carried out in the order of their numbers. Each slot says
// itself when it is full, so a slow thread holds up those behind it, but loses nothing, and no lock is needed. A ring for
// each block or warp keeps them out of each other's way.
//
// The rules that the checker watches:
//   * The data comes before the push. The push releases what its thread did before, and what reached it through a
//     barrier; the proxy acquires it, then reads the source. So other threads' data needs a __syncwarp or __syncthreads
//     before the push, as a signal does (<ep/signal.cuh>).
//   * A slot is filled after its credit was acquired, or a command is overwritten that the proxy has not read.
//   * `taken` is no completion: the source may be overwritten after proxy_flush or proxy_wait only.
//
// Over PCIe, in a sealed ring, two things of the above would cost a microsecond each, measured on an H200:
//   * A release at system scope waits until the host's memory has acknowledged all stores before it: 1.5 us. The parts of
//     a sealed slot need no order, since each has a seal, and are stored behind a fence at GPU scope. It is enough for
//     the source, which lies in this GPU's memory: copy engine and NIC read that through the same L2 cache. HAZARD: it
//     orders no plain stores to the memory of *others* before the command. Follow them by a signal of their own.
//   * A look at `completed` crosses PCIe and back, 1.2 us, and the answer is never there at once. So the first look waits a
//     little, else it would only hold up the second one.
//
// Exercise 04_proxy_ring replaces this file by the learner's.
#pragma once
#include <ep/peer.cuh>
#include <ep/proxy_command.cuh>
#include <ep/wait.cuh>

namespace ep {
namespace detail {

EP_DEVICE int4 two_words(uint64_t low, uint64_t high) {
    return make_int4(static_cast<int>(low), static_cast<int>(low >> 32), static_cast<int>(high),
                     static_cast<int>(high >> 32));
}

// Before the reservation, so that both are on their way at once: in a sealed ring, proxy_fill's fence comes behind this load.
EP_DEVICE uint64_t proxy_known_room(const ProxyRing& ring) {
    return ring.sealed ? ld_relaxed_gpu_u64(&ring.producer->room) : 0;
}

EP_DEVICE bool proxy_wait_for_room(const ProxyRing& ring, uint64_t number, uint64_t known_room, int peer) {
    // EXERCISE-BEGIN 1
    if (number < ring.num_slots) return true;
    const uint64_t needed = number - ring.num_slots + 1;
    if (known_room >= needed || ld_acquire_gpu_u64(&ring.producer->room) >= needed) return true;
    uint64_t seen;
    const bool has_room = poll_until(
        [&] {
            seen = ld_acquire_sys_u64(&ring.credits->taken);
            return seen >= needed;
        },
        [&] { record_fault(kFaultTimeout, {kPhaseProxy, peer, -1}, seen, needed); });
    // Release: the next thread takes the proxy's credit from here.
    if (has_room) st_release_gpu_u64(&ring.producer->room, seen);
    return has_room;
    // EXERCISE-END 1
}

EP_DEVICE ProxyCommand* proxy_slot(const ProxyRing& ring, uint64_t number) {
    return ring.slots + (number & (ring.num_slots - 1));
}

EP_DEVICE uint64_t proxy_what(const ProxyCommand& c) {  // the word of op, peer and queue pair
    return static_cast<uint64_t>(c.op) | static_cast<uint64_t>(c.peer) << 16 |
           static_cast<uint64_t>(c.queue_pair) << 32;
}

// Four stores of 16 bytes, each with a seal.
EP_DEVICE void proxy_fill_sealed(const ProxyRing& ring, const ProxyCommand& c, uint64_t number) {
    const uint64_t seal = (number + 1) << kProxySealShift;
    uint64_t* const parts = reinterpret_cast<uint64_t*>(proxy_slot(ring, number));
    fence_gpu();
    st_relaxed_sys_u64x2(parts, c.target, seal | (c.source & kProxyOffsetMask));
    st_relaxed_sys_u64x2(parts + 2, c.bytes, seal | (c.signal & kProxyOffsetMask));
    st_relaxed_sys_u64x2(parts + 4, c.value, seal | proxy_what(c));
    st_relaxed_sys_u64x2(parts + 6, 0, number + 1);
}

// Elsewhere the last store's upper half is released.
EP_DEVICE void proxy_fill(const ProxyRing& ring, const ProxyCommand& c, uint64_t number) {
    if (ring.sealed) return proxy_fill_sealed(ring, c, number);
    // EXERCISE-BEGIN 2
    ProxyCommand* const slot = proxy_slot(ring, number);
    int4* const words = reinterpret_cast<int4*>(slot);
    st_na_v4(words, two_words(c.target, c.source));
    st_na_v4(words + 1, two_words(c.bytes, c.signal));
    st_na_v4(words + 2, two_words(c.value, proxy_what(c)));
    slot->place = call_site();
    st_release_sys_u64(&slot->number, number + 1);
    // EXERCISE-END 2
}

// As long as the proxy takes at least, from the push's arrival to its store: a quarter of a microsecond. A nanosleep is too
// coarse for that.
constexpr int64_t kProxyAnswerCycles = 500;

// Waits until so many commands are done.
EP_DEVICE bool proxy_wait_for(const ProxyRing& ring, uint64_t count) {
    if (ring.sealed) {
        for (const int64_t begin = clock_cycles(); clock_cycles() - begin < kProxyAnswerCycles;) {
        }
    }
    return wait_until_ge(&ring.credits->completed, count, {kPhaseProxy, -1, -1});
}

}  // namespace detail

// Pushes one command; `number` becomes its number. False after the time limit: return from the kernel then. The number
// stays reserved, so the ring is of no use after that. The ring is passed by value: loads of its fields between the steps
// took as long as the answer of the proxy.
EP_DEVICE bool proxy_push(ProxyRing ring, const ProxyCommand& command, uint64_t* number = nullptr) {
    // EXERCISE-BEGIN 3
    const uint64_t room = detail::proxy_known_room(ring);
    const uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
    if (number != nullptr) *number = mine;
    if (!detail::proxy_wait_for_room(ring, mine, room, command.peer)) return false;
    detail::proxy_fill(ring, command, mine);
    return true;
    // EXERCISE-END 3
}

// Pushes the commands of the first `count` lanes, in their order, with one reservation and one look at the credit. All 32
// lanes call.
EP_DEVICE bool proxy_push_warp(ProxyRing ring, const ProxyCommand& command, int count, uint64_t* number = nullptr) {
    // EXERCISE-BEGIN 4
    const int lane = lane_id();
    unsigned long long first = 0;
    int ok = 1;
    if (lane == 0 && count > 0) {
        first = atom_add_relaxed_gpu_u64(&ring.producer->head, count);
        ok = detail::proxy_wait_for_room(ring, first + count - 1, 0, command.peer);
    }
    first = __shfl_sync(kFullWarp, first, 0);
    ok = __shfl_sync(kFullWarp, ok, 0);
    __syncwarp();  // all lanes have lane 0's credit now, and see its data
    if (number != nullptr) *number = first + lane;
    if (ok && lane < count) detail::proxy_fill(ring, command, first + lane);
    return ok;
    // EXERCISE-END 4
}

// Waits until a command is done, and all that have smaller numbers in its ring. False after the time limit.
EP_DEVICE bool proxy_wait(const ProxyRing& ring, uint64_t number) {
    // EXERCISE-BEGIN 5a
    // Itself, and all with smaller numbers: the first command has number 0.
    return detail::proxy_wait_for(ring, number + 1);
    // EXERCISE-END 5a
}

// Waits until all that was pushed into the ring before is done, by this thread or by threads that have synchronised with
// it.
EP_DEVICE bool proxy_flush(const ProxyRing& ring) {
    // EXERCISE-BEGIN 5b
    return detail::proxy_wait_for(ring, ld_relaxed_gpu_u64(&ring.producer->head));
    // EXERCISE-END 5b
}

// ---- Commands, made from this rank's pointers into the symmetric heap --------------------------------------------------

EP_DEVICE uint64_t heap_offset(const void* mine) {
    return reinterpret_cast<uint64_t>(mine) - reinterpret_cast<uint64_t>(detail::heap_base(rank()));
}

EP_DEVICE ProxyCommand proxy_command(ProxyOp op, int peer, int queue_pair = 0) {
    ProxyCommand command = {};
    command.op = op;
    command.peer = static_cast<uint16_t>(peer);
    command.queue_pair = static_cast<uint16_t>(queue_pair);
    return command;
}

EP_DEVICE ProxyCommand proxy_write(void* dst_mine, const void* src, size_t bytes, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(kProxyWrite, peer, queue_pair);
    command.target = heap_offset(dst_mine);
    command.source = heap_offset(src);
    command.bytes = bytes;
    return command;
}

EP_DEVICE ProxyCommand proxy_write_signal(void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                                          uint64_t value, bool add, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_write(dst_mine, src, bytes, peer, queue_pair);
    command.op = add ? kProxyWriteAddSignal : kProxyWriteSetSignal;
    command.signal = heap_offset(signal_mine);
    command.value = value;
    return command;
}

EP_DEVICE ProxyCommand proxy_add(void* counter_mine, uint64_t value, int size, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(size == sizeof(uint32_t) ? kProxyAdd32 : kProxyAdd64, peer, queue_pair);
    command.signal = heap_offset(counter_mine);
    command.value = value;
    return command;
}

EP_DEVICE ProxyCommand proxy_read(void* dst, const void* src_mine, size_t bytes, int peer, int queue_pair = 0) {
    ProxyCommand command = proxy_command(kProxyRead, peer, queue_pair);
    command.target = heap_offset(dst);
    command.source = heap_offset(src_mine);
    command.bytes = bytes;
    return command;
}

}  // namespace ep

// The functions of <ep/proxy_ring.cuh> for a ring behind PCIe, where two things would cost a microsecond each, measured on
// an H200:
//   * A release at system scope waits until the host's memory has acknowledged all stores before it: 1.5 us. The parts
//     of a sealed slot need no order, since each has a seal, and are stored behind a fence at GPU scope. This fence is
//     enough for the source, which lies in this GPU's memory: copy engine and NIC read it through the same L2 cache.
//     HAZARD: it orders no plain stores to *other* GPUs' memory before the command. Follow these by their own signal.
//   * A look at the proxy's counts crosses PCIe and back, 1.2 us. So producer->room remembers the last credit that was
//     seen, and the first look at `completed` waits a little, since the answer never comes at once.
//
// The host may see the four 16-byte parts of a slot in any order, so each names its command: the lower 16 bits of
// `number` are in the upper bits of `source` and `signal`, and in `seal`. So a sealed ring has at most 32,768 slots.
#pragma once
#include <ep/peer.cuh>
#include <ep/proxy_command.cuh>
#include <ep/wait.cuh>

namespace ep {
namespace sealed {

// `known_room`: the value of producer->room, loaded before the number was reserved, so that both trips to memory
// overlap: the fence of `fill` comes behind that load.
EP_DEVICE bool wait_for_room(const ProxyRing& ring, uint64_t number, uint64_t known_room, int peer) {
    const uint64_t pushed = number + 1;
    if (pushed <= ring.num_slots) return true;
    const uint64_t least = pushed - ring.num_slots;  // the others are in the ring
    if (known_room >= least || ld_acquire_gpu_u64(&ring.producer->room) >= least) return true;
    uint64_t seen;
    const bool has_room = poll_until(
        [&] {
            seen = ld_acquire_sys_u64(&ring.credits->taken);
            return seen >= least;
        },
        [&] { record_fault(kFaultTimeout, {kPhaseProxy, peer, -1}, seen, least); });
    // Release: the next thread takes the proxy's credit from here.
    if (has_room) st_release_gpu_u64(&ring.producer->room, seen);
    return has_room;
}

// Four stores of 16 bytes, each with a seal.
EP_DEVICE void fill(const ProxyRing& ring, const ProxyCommand& c, uint64_t number) {
    const uint64_t seal = (number + 1) << kProxySealShift;
    const uint64_t what =
        static_cast<uint64_t>(c.op) | static_cast<uint64_t>(c.peer) << 16 | static_cast<uint64_t>(c.queue_pair) << 32;
    uint64_t* const parts = reinterpret_cast<uint64_t*>(ring.slots + (number & (ring.num_slots - 1)));
    fence_gpu();
    st_relaxed_sys_u64x2(parts, c.target, seal | (c.source & kProxyOffsetMask));
    st_relaxed_sys_u64x2(parts + 2, c.bytes, seal | (c.signal & kProxyOffsetMask));
    st_relaxed_sys_u64x2(parts + 4, c.value, seal | what);
    st_relaxed_sys_u64x2(parts + 6, 0, number + 1);
}

// The least time of the proxy from a push's arrival to its store: a quarter of a microsecond. A nanosleep is too coarse
// for that.
constexpr int64_t kAnswerCycles = 500;

// Waits until `count` commands are done.
EP_DEVICE bool wait_for(const ProxyRing& ring, uint64_t count) {
    for (const int64_t begin = clock_cycles(); clock_cycles() - begin < kAnswerCycles;) {
    }
    return wait_until_ge(&ring.credits->completed, count, {kPhaseProxy, -1, -1});
}

// The ring is passed by value: loads of its fields between the steps took as long as the proxy's answer.
EP_DEVICE bool push(ProxyRing ring, const ProxyCommand& command, uint64_t* told = nullptr) {
    const uint64_t room = ld_relaxed_gpu_u64(&ring.producer->room);
    const uint64_t number = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
    if (told != nullptr) *told = number;
    if (!wait_for_room(ring, number, room, command.peer)) return false;
    fill(ring, command, number);
    return true;
}

EP_DEVICE bool push_warp(ProxyRing ring, const ProxyCommand& command, int count, uint64_t* told = nullptr) {
    uint64_t begin = 0;
    bool ok = true;
    if (lane_id() == 0 && count > 0) {
        begin = atom_add_relaxed_gpu_u64(&ring.producer->head, count);
        ok = wait_for_room(ring, begin + count - 1, 0, command.peer);
    }
    const uint64_t number = __shfl_sync(kFullWarp, static_cast<unsigned long long>(begin), 0) + lane_id();
    ok = __any_sync(kFullWarp, !ok) == 0;
    __syncwarp();  // all lanes have lane 0's credit now, and see its data
    if (told != nullptr) *told = number;
    if (ok && lane_id() < count) fill(ring, command, number);
    return ok;
}

EP_DEVICE bool wait(const ProxyRing& ring, uint64_t number) { return wait_for(ring, number + 1); }

EP_DEVICE bool flush(const ProxyRing& ring) { return wait_for(ring, ld_relaxed_gpu_u64(&ring.producer->head)); }

}  // namespace sealed
}  // namespace ep

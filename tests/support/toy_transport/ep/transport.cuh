// The operations of <ep/net.cuh> through a staging area in host memory: a put waits there until it is carried on.
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>

namespace ep {
namespace transport {
namespace toy {

constexpr int kSlots = 16;
constexpr size_t kSlotBytes = 1024;

enum State : uint32_t { kFree, kFilling, kFull, kBeingCarried };

struct alignas(64) Slot {
    char data[kSlotBytes];
    char* target;  // this rank's address of it
    uint64_t bytes;
    int peer;
    uint32_t state;
};

struct alignas(64) Area {
    uint64_t staged;  // bytes so far
    Slot slots[kSlots];
};

}  // namespace toy
}  // namespace transport
}  // namespace ep

extern "C" {
// Written by the host before a module's first launch.
__attribute__((visibility("default"))) ep::transport::toy::Area* toy_area;
}

namespace ep {
namespace transport {
namespace toy {

EP_DEVICE bool take(Slot* slot, State from, State to) {
    return atom_cas_acquire_sys_u32(&slot->state, from, to) == from;
}

// Hands a full slot's bytes on to their target; nothing, if another thread is at it.
EP_DEVICE void carry(Slot* slot) {
    if (!take(slot, kFull, kBeingCarried)) return;
    copy_bytes<kThreadUnroll>(peer_ptr(slot->target, slot->peer), slot->data, slot->bytes, 0, 1);
    st_release_sys_u32(&slot->state, kFree);
}

// What was posted before has reached its targets when this returns, whichever thread posted it.
EP_DEVICE void flush() {
    for (int i = 0; i < kSlots; ++i) {
        Slot* const slot = &toy_area->slots[i];
        carry(slot);
        while (ld_acquire_sys_u32(&slot->state) == kBeingCarried) sleep_ns(20);
    }
}

// A free slot, for this thread alone.
EP_DEVICE Slot* take_free() {
    for (int i = 0;; i = (i + 1) % kSlots) {
        Slot* const slot = &toy_area->slots[i];
        if (take(slot, kFree, kFilling)) return slot;
        if (i == kSlots - 1) flush();
    }
}

}  // namespace toy

EP_DEVICE bool reachable(int peer) { return peer == rank(); }  // as if GPUs could not see each other
EP_DEVICE int num_queue_pairs() { return 1; }
EP_DEVICE bool keeps_order() { return false; }

EP_DEVICE void net_put(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    for (size_t begin = 0; begin < bytes; begin += toy::kSlotBytes) {
        toy::Slot* const slot = toy::take_free();
        slot->target = static_cast<char*>(dst_mine) + begin;
        slot->bytes = bytes - begin < toy::kSlotBytes ? bytes - begin : toy::kSlotBytes;
        slot->peer = peer;
        copy_bytes<kThreadUnroll>(slot->data, static_cast<const char*>(src) + begin, slot->bytes, 0, 1);
        red_add_relaxed_sys_u64(&toy_area->staged, slot->bytes);
        st_release_sys_u32(&slot->state, toy::kFull);
    }
}
EP_DEVICE void net_get(int peer, int, void* dst, const void* src_mine, size_t bytes) {
    for (size_t begin = 0; begin < bytes; begin += toy::kSlotBytes) {
        const size_t part = bytes - begin < toy::kSlotBytes ? bytes - begin : toy::kSlotBytes;
        toy::Slot* const slot = toy::take_free();
        copy_bytes<kThreadUnroll>(slot->data, peer_ptr(static_cast<const char*>(src_mine), peer) + begin, part, 0, 1);
        copy_bytes<kThreadUnroll>(static_cast<char*>(dst) + begin, slot->data, part, 0, 1);
        red_add_relaxed_sys_u64(&toy_area->staged, part);
        st_release_sys_u32(&slot->state, toy::kFree);
    }
}
EP_DEVICE void net_add(int peer, int, void* counter_mine, uint64_t value, int size) {
    if (size == sizeof(uint32_t)) {
        red_add_release_sys_u32(peer_ptr(static_cast<uint32_t*>(counter_mine), peer), static_cast<uint32_t>(value));
    } else {
        red_add_release_sys_u64(peer_ptr(static_cast<uint64_t*>(counter_mine), peer), value);
    }
}
EP_DEVICE void net_put_signal(int peer, int qp, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                              uint64_t value, bool add) {
    net_put(peer, qp, dst_mine, src, bytes);
    toy::flush();
    if (add) {
        signal_add(signal_mine, value, peer);
    } else {
        signal_set(signal_mine, value, peer);
    }
}
EP_DEVICE void net_fence(int, int) { toy::flush(); }
EP_DEVICE void net_quiet(int, int) { toy::flush(); }

}  // namespace transport
}  // namespace ep

#include <ep/detail/first_thread_posts.cuh>

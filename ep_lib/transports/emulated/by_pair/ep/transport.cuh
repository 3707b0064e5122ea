// The operations of <ep/net.cuh> on the emulator, by the path to each peer, as NVSHMEM chooses on GPUs: stores to ranks
// of the same node (and to this rank itself), the simulated NIC to all others.
//
// Stores to a peer are complete and ordered when the next signal is released: only NIC operations need a fence and a
// quiet. A pair of ranks never changes its path, so each counter has one kind of writer from each peer.
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep_emulator/abi.h>

namespace ep {
namespace transport {

using detail::reachable;

EP_DEVICE int num_queue_pairs() { return epemu_num_queue_pairs(); }
EP_DEVICE bool keeps_order() { return epemu_keeps_order(); }

EP_DEVICE void net_put(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes) {
    if (reachable(peer)) {
        put_thread(dst_mine, src, bytes, peer);
    } else {
        epemu_net_put(peer, queue_pair, dst_mine, src, bytes);
    }
}
EP_DEVICE void net_get(int peer, int queue_pair, void* dst, const void* src_mine, size_t bytes) {
    if (reachable(peer)) {
        copy_bytes<kThreadUnroll>(dst, peer_ptr(static_cast<const char*>(src_mine), peer), bytes, 0, 1);
    } else {
        epemu_net_get(peer, queue_pair, dst, src_mine, bytes);
    }
}
EP_DEVICE void net_put_signal(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes,
                              uint64_t* signal_mine, uint64_t value, bool add) {
    if (!reachable(peer)) {
        epemu_net_put_signal(peer, queue_pair, dst_mine, src, bytes, signal_mine, value,
                             add ? EPEMU_SIGNAL_ADD : EPEMU_SIGNAL_SET);
        return;
    }
    put_thread(dst_mine, src, bytes, peer);
    if (add) {
        signal_add(signal_mine, value, peer);
    } else {
        signal_set(signal_mine, value, peer);
    }
}
EP_DEVICE void net_add(int peer, int queue_pair, void* counter_mine, uint64_t value, int size) {
    if (!reachable(peer)) {
        epemu_net_atomic(peer, queue_pair, counter_mine, value, size, EPEMU_SIGNAL_ADD);
    } else if (size == sizeof(uint32_t)) {
        red_add_release_sys_u32(peer_ptr(static_cast<uint32_t*>(counter_mine), peer), static_cast<uint32_t>(value));
    } else {
        red_add_release_sys_u64(peer_ptr(static_cast<uint64_t*>(counter_mine), peer), value);
    }
}
EP_DEVICE void net_fence(int peer, int queue_pair) {
    fence_sys();
    epemu_net_fence(peer, queue_pair);
}
EP_DEVICE void net_quiet(int peer, int queue_pair) {
    epemu_net_quiet(peer, queue_pair);
}  // ep::net_quiet has the fence

}  // namespace transport
}  // namespace ep

#include <ep/detail/first_thread_posts.cuh>

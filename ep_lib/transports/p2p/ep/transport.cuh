// The operations of <ep/net.cuh> as stores to the peer's memory, over NVLink or PCIe. They are ordered more strongly
// than a NIC's. An operation on a peer that they do not reach only records a fault.
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>

namespace ep {
namespace transport {

using detail::reachable;

EP_DEVICE int num_queue_pairs() { return 1; }
EP_DEVICE bool keeps_order() { return true; }

namespace p2p {

EP_DEVICE bool stores_reach(int peer) {
    if (reachable(peer)) return true;
    record_fault(kFaultTransport, {kPhaseWrite, peer, -1}, 0, 0);
    return false;
}

EP_DEVICE void signal(int peer, uint64_t* signal_mine, uint64_t value, bool add) {
    if (add) {
        signal_add(signal_mine, value, peer);
    } else {
        signal_set(signal_mine, value, peer);
    }
}

}  // namespace p2p

EP_DEVICE void net_put(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (p2p::stores_reach(peer)) put_thread(dst_mine, src, bytes, peer);
}
EP_DEVICE void net_put_block(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (p2p::stores_reach(peer)) put_block(dst_mine, src, bytes, peer);
}
EP_DEVICE void net_get(int peer, int, void* dst, const void* src_mine, size_t bytes) {
    if (!p2p::stores_reach(peer)) return;
    copy_bytes<kThreadUnroll>(dst, peer_ptr(static_cast<const char*>(src_mine), peer), bytes, 0, 1);
}
EP_DEVICE void net_put_signal(int peer, int, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                              uint64_t value, bool add) {
    if (!p2p::stores_reach(peer)) return;
    put_thread(dst_mine, src, bytes, peer);
    p2p::signal(peer, signal_mine, value, add);
}
EP_DEVICE void net_put_signal_block(int peer, int, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                                    uint64_t value, bool add) {
    if (!p2p::stores_reach(peer)) return;
    put_block(dst_mine, src, bytes, peer);
    __syncthreads();  // all threads' stores are before the one signal
    if (thread_in_block() == 0) p2p::signal(peer, signal_mine, value, add);
}
EP_DEVICE void net_add(int peer, int, void* counter_mine, uint64_t value, int size) {
    if (!p2p::stores_reach(peer)) return;
    if (size == sizeof(uint32_t)) {
        red_add_release_sys_u32(peer_ptr(static_cast<uint32_t*>(counter_mine), peer), static_cast<uint32_t>(value));
    } else {
        red_add_release_sys_u64(peer_ptr(static_cast<uint64_t*>(counter_mine), peer), value);
    }
}
EP_DEVICE void net_fence(int, int) { fence_sys(); }
EP_DEVICE void net_quiet(int, int) {}  // stores are ordered; ep::net_quiet has the fence

}  // namespace transport
}  // namespace ep

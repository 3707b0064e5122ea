// The operations of <ep/net.cuh> through a proxy: each one is a command in a ring (<ep/proxy_ring.cuh>; behind PCIe,
// <ep/sealed_ring.cuh>).
//
// Each queue pair has a ring, up to the number of rings: one host thread posts its commands in order. Operations of
// different queue pairs are as unordered as a NIC's.
#pragma once
#include <ep/pieces.cuh>
#include <ep/proxy_operations.cuh>
#include <ep/proxy_ring.cuh>
#include <ep/sealed_ring.cuh>

namespace ep {
namespace transport {
namespace proxy {

constexpr int kAll = -1;  // ep::kAllPeers, ep::kAllQueuePairs

EP_DEVICE const ProxyRings& mine() { return *reinterpret_cast<const ProxyRings*>(detail::heap_header().proxy); }
EP_DEVICE const ProxyRing& ring_of(int queue_pair) { return mine().rings[queue_pair % mine().count]; }

EP_DEVICE void push(int queue_pair, const ProxyCommand& command) {
    const ProxyRing& ring = ring_of(queue_pair);
    if (ring.sealed) {
        sealed::push(ring, command);
        return;
    }
    proxy_push(ring, command);  // a push that ran into its limit has recorded a fault
    count_piece(kCountCommands);
}

EP_DEVICE bool flush(const ProxyRing& ring) { return ring.sealed ? sealed::flush(ring) : proxy_flush(ring); }

}  // namespace proxy

using detail::reachable;

EP_DEVICE int num_queue_pairs() { return proxy::mine().num_queue_pairs; }
EP_DEVICE bool keeps_order() { return proxy::mine().keeps_order != 0; }

EP_DEVICE void net_put(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes) {
    proxy::push(queue_pair, proxy_write(dst_mine, src, bytes, peer, queue_pair));
}
EP_DEVICE void net_get(int peer, int queue_pair, void* dst, const void* src_mine, size_t bytes) {
    proxy::push(queue_pair, proxy_read(dst, src_mine, bytes, peer, queue_pair));
}
EP_DEVICE void net_put_signal(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes,
                              uint64_t* signal_mine, uint64_t value, bool add) {
    proxy::push(queue_pair, proxy_write_signal(dst_mine, src, bytes, signal_mine, value, add, peer, queue_pair));
}
EP_DEVICE void net_add(int peer, int queue_pair, void* counter_mine, uint64_t value, int size) {
    proxy::push(queue_pair, proxy_add(counter_mine, value, size, peer, queue_pair));
}
EP_DEVICE void net_quiet(int, int queue_pair) {
    if (queue_pair != proxy::kAll) {
        proxy::flush(proxy::ring_of(queue_pair));
        return;
    }
    for (int i = 0; i < proxy::mine().count; ++i) {
        if (!proxy::flush(proxy::mine().rings[i])) return;
    }
}
EP_DEVICE void net_fence(int peer, int queue_pair) {
    if (queue_pair != proxy::kAll) {
        proxy::push(queue_pair, proxy_command(kProxyFence, peer, queue_pair));
    } else {
        net_quiet(peer, queue_pair);  // there is no order between rings
    }
}

}  // namespace transport
}  // namespace ep

#include <ep/detail/first_thread_posts.cuh>

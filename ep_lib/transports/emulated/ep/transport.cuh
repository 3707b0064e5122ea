// The operations of <ep/net.cuh> on the emulator: calls into its simulated NICs.
#pragma once
#include <ep/platform.cuh>
#include <ep_emulator/abi.h>

namespace ep {
namespace transport {

using detail::reachable;

EP_DEVICE int num_queue_pairs() { return epemu_num_queue_pairs(); }
EP_DEVICE bool keeps_order() { return epemu_keeps_order(); }

EP_DEVICE void net_put(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes) {
    epemu_net_put(peer, queue_pair, dst_mine, src, bytes);
}
EP_DEVICE void net_get(int peer, int queue_pair, void* dst, const void* src_mine, size_t bytes) {
    epemu_net_get(peer, queue_pair, dst, src_mine, bytes);
}
EP_DEVICE void net_put_signal(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes,
                              uint64_t* signal_mine, uint64_t value, bool add) {
    epemu_net_put_signal(peer, queue_pair, dst_mine, src, bytes, signal_mine, value,
                         add ? EPEMU_SIGNAL_ADD : EPEMU_SIGNAL_SET);
}
EP_DEVICE void net_add(int peer, int queue_pair, void* counter_mine, uint64_t value, int size) {
    epemu_net_atomic(peer, queue_pair, counter_mine, value, size, EPEMU_SIGNAL_ADD);
}
EP_DEVICE void net_fence(int peer, int queue_pair) { epemu_net_fence(peer, queue_pair); }
EP_DEVICE void net_quiet(int peer, int queue_pair) { epemu_net_quiet(peer, queue_pair); }

}  // namespace transport
}  // namespace ep

#include <ep/detail/first_thread_posts.cuh>

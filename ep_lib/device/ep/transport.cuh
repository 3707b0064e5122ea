// What stands behind the operations of <ep/net.cuh>: this file, or another one of the same name.
//
// Here it is what the platform has: the emulator's NICs, and on GPUs nothing, so that plain stores to P2P peers do the
// work. For another transport the compiler searches ep_lib/transports/NAME first and finds its <ep/transport.cuh>
// there. No kernel changes.
#pragma once
#include <ep/platform.cuh>

namespace ep {
namespace transport {

using detail::kHasNetwork;

using detail::keeps_order;
using detail::net_add;
using detail::net_fence;
using detail::net_get;
using detail::net_put;
using detail::net_put_signal;
using detail::net_quiet;
using detail::num_queue_pairs;

// A NIC takes one request, whoever asks: the block's first thread posts it.
EP_DEVICE void net_put_block(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes) {
    if (thread_in_block() == 0) detail::net_put(peer, queue_pair, dst_mine, src, bytes);
}
EP_DEVICE void net_put_signal_block(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes,
                                    uint64_t* signal_mine, uint64_t value, bool add) {
    if (thread_in_block() != 0) return;
    detail::net_put_signal(peer, queue_pair, dst_mine, src, bytes, signal_mine, value, add);
}

}  // namespace transport
}  // namespace ep

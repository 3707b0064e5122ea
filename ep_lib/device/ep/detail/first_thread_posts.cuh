// A transport's operations of a whole block, where one thread posts a request for all: included at the end of such a
// transport's <ep/transport.cuh>.
#pragma once

namespace ep {
namespace transport {

EP_DEVICE void net_put_block(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes) {
    if (thread_in_block() == 0) net_put(peer, queue_pair, dst_mine, src, bytes);
}
EP_DEVICE void net_put_signal_block(int peer, int queue_pair, void* dst_mine, const void* src, size_t bytes,
                                    uint64_t* signal_mine, uint64_t value, bool add) {
    if (thread_in_block() == 0) net_put_signal(peer, queue_pair, dst_mine, src, bytes, signal_mine, value, add);
}

}  // namespace transport
}  // namespace ep

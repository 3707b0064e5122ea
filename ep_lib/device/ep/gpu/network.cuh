// The network on an NVIDIA GPU: there is none yet, only peers that loads and stores reach. <ep/net.cuh> asks
// kHasNetwork before it calls any of the functions that do nothing here.
#pragma once
#include <ep/platform.cuh>

namespace ep {
namespace detail {

constexpr bool kHasNetwork = false;

// The host leaves the address 0 where it could not map a peer's heap.
EP_DEVICE bool reachable(int peer) { return peer >= 0 && peer < num_ranks() && heap_base(peer) != nullptr; }
EP_DEVICE int num_queue_pairs() { return 1; }
EP_DEVICE bool keeps_order() { return true; }

EP_DEVICE void net_put(int, int, void*, const void*, size_t) {}
EP_DEVICE void net_get(int, int, void*, const void*, size_t) {}
EP_DEVICE void net_put_signal(int, int, void*, const void*, size_t, uint64_t*, uint64_t, bool) {}
EP_DEVICE void net_add(int, int, void*, uint64_t, int) {}
EP_DEVICE void net_fence(int, int) {}
EP_DEVICE void net_quiet(int, int) {}

}  // namespace detail
}  // namespace ep

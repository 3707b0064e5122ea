// What stands behind the operations of <ep/net.cuh>: this file, or another one of the same name.
//
// Here it is what the platform has: the emulator's NICs, and on GPUs nothing, so that plain stores to P2P peers do the
// work. For another transport the compiler searches ep_lib/device/transports/NAME first and finds its <ep/transport.cuh>
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

}  // namespace transport
}  // namespace ep

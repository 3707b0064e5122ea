// Where this rank's rings are, on the emulator: the head of the symmetric heap says so.
#pragma once
#include <ep/platform.cuh>
#include <ep/proxy_command.cuh>
#include <ep_emulator/abi.h>

namespace ep {
namespace transport {
namespace proxy {

EP_DEVICE const ProxyRing* rings() { return reinterpret_cast<const ProxyRing*>(detail::heap_header().proxy_rings); }
EP_DEVICE int num_rings() { return static_cast<int>(detail::heap_header().num_proxy_rings); }
EP_DEVICE int num_queue_pairs() { return epemu_num_queue_pairs(); }
EP_DEVICE bool keeps_order() { return epemu_keeps_order(); }

}  // namespace proxy
}  // namespace transport
}  // namespace ep

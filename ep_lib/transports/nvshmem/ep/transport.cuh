// The operations of <ep/net.cuh> as calls of NVSHMEM's device library.
//
// NVSHMEM chooses the path to each peer: loads and stores over NVLink or PCIe, or a NIC, driven by the GPU (IBGDA) or
// by a CPU thread (InfiniBand, RoCE, EFA through libfabric). The symmetric heap is in NVSHMEM's memory, so its calls
// take the address of this rank's own copy.
//
// NVSHMEM has no queue pairs in its interface: it spreads operations over its own, and quiet and fence apply to all of
// them. Both are stronger than requested, never weaker.
#pragma once
#include <ep/memory.cuh>
#include <ep/platform.cuh>

// NVRTC cannot read all of <nvshmem.h>: these two have the operations between two PEs.
#include <device/nvshmem_defines.h>
#include <device/nvshmemx_defines.h>

namespace ep {
namespace transport {

using detail::reachable;

EP_DEVICE int num_queue_pairs() { return 1; }
EP_DEVICE bool keeps_order() { return false; }

EP_DEVICE void net_put(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (bytes > 0) nvshmem_putmem_nbi(dst_mine, src, bytes, peer);
}
EP_DEVICE void net_put_block(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (bytes > 0) nvshmemx_putmem_nbi_block(dst_mine, src, bytes, peer);
}
EP_DEVICE void net_get(int peer, int, void* dst, const void* src_mine, size_t bytes) {
    if (bytes > 0) nvshmem_getmem_nbi(dst, src_mine, bytes, peer);
}
EP_DEVICE void net_put_signal(int peer, int, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                              uint64_t value, bool add) {
    nvshmem_putmem_signal_nbi(dst_mine, src, bytes, signal_mine, value, add ? NVSHMEM_SIGNAL_ADD : NVSHMEM_SIGNAL_SET,
                              peer);
}
EP_DEVICE void net_put_signal_block(int peer, int, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                                    uint64_t value, bool add) {
    nvshmemx_putmem_signal_nbi_block(dst_mine, src, bytes, signal_mine, value,
                                     add ? NVSHMEM_SIGNAL_ADD : NVSHMEM_SIGNAL_SET, peer);
}
// To a P2P peer NVSHMEM's add is a relaxed atomic. The fence orders it after the earlier accesses of this thread, and
// of its warp or block before a barrier: a credit must not be visible before the reads that it acknowledges.
EP_DEVICE void net_add(int peer, int, void* counter_mine, uint64_t value, int size) {
    fence_sys();
    if (size == sizeof(uint32_t)) {
        nvshmem_uint32_atomic_add(static_cast<uint32_t*>(counter_mine), static_cast<uint32_t>(value), peer);
    } else {
        nvshmem_uint64_atomic_add(static_cast<uint64_t*>(counter_mine), value, peer);
    }
}
EP_DEVICE void net_fence(int, int) { nvshmem_fence(); }
EP_DEVICE void net_quiet(int, int) { nvshmem_quiet(); }

}  // namespace transport
}  // namespace ep

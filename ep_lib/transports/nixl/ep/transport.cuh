// The operations of <ep/net.cuh> on NIXL's device API: UCX's device functions over NIXL's memory views.
//
// nixlPut and nixlAtomicAdd are thin wrappers of ucp_device_put and ucp_device_counter_inc; NIXL's wheels have no
// device headers, UCX's (libucx-cu12, libucx-cu13) do, so this calls UCX directly. The host (heap.py) registers every
// rank's heap with a NIXL agent and makes two memory views: of this rank's heap, and of all others'.
//
// Operations that UCX's device functions lack, and their replacements:
//   quiet      each post waits until it is complete, so that nothing remains for quiet. Over NVLink and PCIe a
//              put is complete when it returns (the threads themselves store); over a NIC this waits a round trip
//   a fence    before every signal: ucp_device_counter_inc is a relaxed atomic, with a fence behind it and none before
//   get, set   loads and stores to where UCX has mapped the peer's memory (ucp_device_get_ptr), as far as it has
//   32 bits    counters of UCX have 64; adds of 32 bits go to the mapped memory too
// Where it has not mapped the memory (a peer behind a NIC), those record a fault that says so.
#pragma once
#include <ep/put.cuh>
#include <ep/wait.cuh>

#include <cassert>

#include <ucp/api/device/ucp_device_impl.h>

namespace ep {

// Filled by the host before a module's first launch; heap.py writes two 64-bit words.
struct NixlState {
    ucp_device_local_mem_list_h mine;     // memory view, entry 0: this rank's heap
    ucp_device_remote_mem_list_h others;  // memory view of the other ranks' heaps, in rank order, without this rank's
};

}  // namespace ep

extern "C" {
__constant__ ep::NixlState ep_nixl_state;
}

namespace ep {
namespace transport {

using detail::reachable;
constexpr unsigned kChannel = 0;  // UCX's name for a queue pair

EP_DEVICE int num_queue_pairs() { return 1; }
EP_DEVICE bool keeps_order() { return false; }

namespace nixl {

EP_DEVICE unsigned entry(int peer) { return peer < rank() ? peer : peer - 1; }

EP_DEVICE size_t offset(const void* in_my_heap) {
    return reinterpret_cast<uint64_t>(in_my_heap) - reinterpret_cast<uint64_t>(detail::heap_base(rank()));
}

EP_DEVICE void refused(int peer, ucs_status_t status) {
    record_fault(kFaultTransport, {kPhaseWrite, peer, -1}, static_cast<uint64_t>(-static_cast<int>(status)), 0);
}

// Waits until the last post is complete.
template <ucs_device_level_t kLevel>
EP_DEVICE void finish(int peer, ucs_status_t status, ucp_device_request_t* request) {
    while (status == UCS_INPROGRESS) status = ucp_device_progress_req<kLevel>(request);
    if (status != UCS_OK) refused(peer, status);
}

// The address at which this rank's loads and stores reach the peer's copy; null, and a fault, if they do not.
template <typename T>
EP_DEVICE T* mapped(T* mine, int peer) {
    if (detail::reachable(peer)) return peer_ptr(mine, peer);
    refused(peer, UCS_ERR_UNSUPPORTED);
    return nullptr;
}

// All threads of the level call with equal arguments; ends with the level's barrier.
template <ucs_device_level_t kLevel>
EP_DEVICE void put(int peer, void* dst_mine, const void* src, size_t bytes) {
    ucp_device_request_t request;
    const ucs_status_t status =
        ucp_device_put<kLevel>(ep_nixl_state.mine, 0, offset(src), ep_nixl_state.others, entry(peer), offset(dst_mine),
                               bytes, kChannel, UCP_DEVICE_FLAG_NODELAY, &request);
    finish<kLevel>(peer, status, &request);
}

}  // namespace nixl

EP_DEVICE void net_put(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (bytes == 0) return;
    if (peer == rank()) {
        put_thread(dst_mine, src, bytes, peer);
    } else {
        nixl::put<UCS_DEVICE_LEVEL_THREAD>(peer, dst_mine, src, bytes);
    }
}
EP_DEVICE void net_put_block(int peer, int, void* dst_mine, const void* src, size_t bytes) {
    if (bytes == 0) return;
    if (peer == rank()) {
        put_block(dst_mine, src, bytes, peer);
    } else {
        nixl::put<UCS_DEVICE_LEVEL_BLOCK>(peer, dst_mine, src, bytes);
    }
}
EP_DEVICE void net_get(int peer, int, void* dst, const void* src_mine, size_t bytes) {
    const char* const theirs = nixl::mapped(static_cast<const char*>(src_mine), peer);
    if (theirs != nullptr) copy_bytes<kThreadUnroll>(dst, theirs, bytes, 0, 1);
}
EP_DEVICE void net_add(int peer, int, void* counter_mine, uint64_t value, int size) {
    fence_sys();
    if (size == sizeof(uint32_t)) {
        uint32_t* const theirs = nixl::mapped(static_cast<uint32_t*>(counter_mine), peer);
        if (theirs != nullptr) red_add_relaxed_sys_u32(theirs, static_cast<uint32_t>(value));
    } else if (peer == rank()) {
        red_add_relaxed_sys_u64(static_cast<uint64_t*>(counter_mine), value);
    } else {
        ucp_device_request_t request;
        const ucs_status_t status = ucp_device_counter_inc<UCS_DEVICE_LEVEL_THREAD>(
            value, ep_nixl_state.others, nixl::entry(peer), nixl::offset(counter_mine), kChannel,
            UCP_DEVICE_FLAG_NODELAY, &request);
        nixl::finish<UCS_DEVICE_LEVEL_THREAD>(peer, status, &request);
    }
}
namespace nixl {
EP_DEVICE void signal(int peer, int qp, uint64_t* signal_mine, uint64_t value, bool add) {
    if (add) {
        net_add(peer, qp, signal_mine, value, sizeof(uint64_t));
    } else if (uint64_t* const theirs = mapped(signal_mine, peer)) {
        st_release_sys_u64(theirs, value);
    }
}
}  // namespace nixl

EP_DEVICE void net_put_signal(int peer, int qp, void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                              uint64_t value, bool add) {
    net_put(peer, qp, dst_mine, src, bytes);
    nixl::signal(peer, qp, signal_mine, value, add);
}
EP_DEVICE void net_put_signal_block(int peer, int qp, void* dst_mine, const void* src, size_t bytes,
                                    uint64_t* signal_mine, uint64_t value, bool add) {
    net_put_block(peer, qp, dst_mine, src, bytes);
    __syncthreads();
    if (thread_in_block() == 0) nixl::signal(peer, qp, signal_mine, value, add);
}
EP_DEVICE void net_fence(int, int) { fence_sys(); }
EP_DEVICE void net_quiet(int, int) {}  // ep::net_quiet has a fence for the stores, and no operation is pending

}  // namespace transport
}  // namespace ep

// The calls of <ep/ibgda_shim.cuh> that move data: by P2P where it reaches the peer, otherwise through the NIC.
//
// Exercise 03_shim replaces this file by the learner's.
#pragma once
#include <ep/ibgda_state.cuh>
#include <ep/net.cuh>

// The address at which rank `rank` (the caller) reaches dst_rank's copy of the symmetric address `ptr` by loads and
// stores; 0 if it cannot: RDMA is needed.
EP_DEVICE uint64_t nvshmemi_get_p2p_ptr(const uint64_t& ptr, const int& rank, const int& dst_rank) {
    if (!ep::ibgda::is_initialised()) return 0;
    // EXERCISE-BEGIN 1
    if (rank == dst_rank) return ptr;
    if (!ep::reachable(dst_rank)) return 0;
    return reinterpret_cast<uint64_t>(ep::peer_ptr(ep::ibgda::as_pointer<char>(ptr), dst_rank));
    // EXERCISE-END 1
}

// Writes `bytes` bytes from req_lptr to dst_pe's copy of the symmetric address req_rptr, and returns before they are
// there. All 32 lanes call with equal arguments, each with its own lane_id. To a P2P peer the warp copies; otherwise
// lane 0 posts one operation. If other lanes wrote into the source, a __syncwarp must come before the call.
//
// The source may be reused after nvshmemi_ibgda_quiet only. kAlwaysDoPostSend and message_idx tell IBGDA when to ring
// the NIC's doorbell for several requests at once; here every put is posted at once and they change nothing.
template <bool kAlwaysDoPostSend = false>
EP_DEVICE void nvshmemi_ibgda_put_nbi_warp(uint64_t req_rptr, uint64_t req_lptr, size_t bytes, int dst_pe, int qp_id,
                                           int lane_id, int message_idx) {
    (void)message_idx;
    if (!ep::ibgda::is_initialised()) return;
    void* const remote = ep::ibgda::as_pointer<void>(req_rptr);
    const void* const local = ep::ibgda::as_pointer<void>(req_lptr);
    if (ep::reachable(dst_pe)) {
        // EXERCISE-BEGIN 2
        char* const theirs = ep::peer_ptr(static_cast<char*>(remote), dst_pe);
        ep::copy_bytes<ep::kWarpUnroll>(theirs, local, bytes, lane_id, ep::kWarpSize);
        __syncwarp();  // the lane that signals next publishes what all lanes wrote
        // EXERCISE-END 2
    } else {
        // EXERCISE-BEGIN 3
        if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
        __syncwarp();  // no lane goes on before the request is posted: any of them may wait for it
        // EXERCISE-END 3
    }
}

// Adds to the 32-bit integer at pe's copy of the symmetric address rptr; with is_local_copy, or if pe is the caller,
// to the one at rptr itself. One lane calls.
//
// To a P2P peer the guide uses a plain atomicAdd; here it is a release at system scope, so that it comes after what
// this warp put there before (with a __syncwarp in between, as the put has), as on a queue pair of IBGDA.
EP_DEVICE void nvshmemi_ibgda_amo_nonfetch_add(void* rptr, const int& value, int pe, int qp_id,
                                               bool is_local_copy = false) {
    if (!ep::ibgda::is_initialised()) return;
    // EXERCISE-BEGIN 4
    uint32_t* const counter = static_cast<uint32_t*>(rptr);
    const uint32_t addend = static_cast<uint32_t>(value);
    if (is_local_copy || pe == ep::rank()) {
        ep::red_add_release_sys_u32(counter, addend);
    } else if (ep::reachable(pe)) {
        ep::red_add_release_sys_u32(ep::peer_ptr(counter, pe), addend);
    } else {
        ep::net_atomic_add_u32_nbi(counter, addend, pe, ep::ibgda::queue_pair(qp_id));
    }
    // EXERCISE-END 4
}

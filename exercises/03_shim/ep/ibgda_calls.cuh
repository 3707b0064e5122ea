// Exercise 03_shim, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (2 points): the address of a peer's memory, or none
    // `ptr` is this rank's own copy of something symmetric. Its own rank gets it back; a peer that loads and
    // stores reach (ep::reachable) gets the address of the peer's copy (ep::peer_ptr; addresses travel as
    // uint64_t here, see ep::ibgda::as_pointer); for all others the answer is 0, which means: use RDMA.
    assert(!"Task 1 is still to do: the address of a peer's memory, or none");
    return 0;
    // end of TASK 1
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
        // TASK 2 (2 points): a put to a peer within reach
        // All 32 lanes are here. Copy `bytes` bytes from `local` to the peer's copy of `remote`, each lane its
        // share: ep::copy_bytes<ep::kWarpUnroll>(target, source, bytes, lane_id, ep::kWarpSize), or a loop. The
        // caller's lane 0 sends the signal next: what must stand at the end, so that its release covers the
        // bytes of all lanes?
        assert(!"Task 2 is still to do: a put to a peer within reach");
        // end of TASK 2
    } else {
        // TASK 3 (3 points): a put through the NIC
        // One request, not thirty-two: ep::net_put_nbi(remote, local, bytes, peer, queue pair). Which lane posts
        // it? A qp_id may be larger than the NIC's number of queue pairs: ep::ibgda::queue_pair(qp_id) gives the
        // one it means. Do not wait until the data is there (that is quiet's work), but let no lane go on before
        // the request is posted.
        assert(!"Task 3 is still to do: a put through the NIC");
        // end of TASK 3
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
    // TASK 4 (3 points): an atomic add, wherever the counter lies
    // Four cases. A local copy, or the caller's own: add to rptr itself. A peer within reach: add to its copy,
    // by ep::red_add_release_sys_u32 (a release: data written before must be seen before the counter). Else the
    // NIC: ep::net_atomic_add_u32_nbi, on the queue pair that qp_id means, so that on InfiniBand it stays behind
    // the put.
    assert(!"Task 4 is still to do: an atomic add, wherever the counter lies");
    // end of TASK 4
}

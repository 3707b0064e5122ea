// The IBGDA functions that DeepEP's kernels call, on any transport: kernels change their include, not their calls.
//
//     IBGDA              a GPU thread writes work requests into an InfiniBand NIC's queue and rings its doorbell itself
//     this shim          the same signatures; P2P peers by loads and stores, all others by the network of <ep/net.cuh>
//
// Names, parameters and logic are those of the EFA device guide (efa_device_fixed.cuh). The host must call
// ep_lib.ibgda.init_efa_device_state(rank, num_channels, num_devices) before the first launch; without it every
// function here records a fault that says so, and does nothing.
//
// The same calls, not the same order! On IBGDA (RC) a queue pair keeps its operations in order, so a put followed by
// an atomic add on the same qp_id is a message with its signal. On EFA (SRD) nothing keeps that order: between the two
// must stand a nvshmemi_ibgda_quiet. tutorial_kernels/03_ibgda_shim.cu climbs there step by step.
//
// And not the same quiet: IBGDA waits for one queue pair to one PE, the EFA functions wait for everything. So code
// that names the wrong queue pair works on EFA, and reuses its source too early on InfiniBand.
//
// Transports: the emulator's NICs (spawn(fabric="rc" | "srd")) and P2P; on GPUs P2P only for now, see <ep/net.cuh>.
#pragma once
#include <ep/net.cuh>

using nvshmemi_ibgda_device_state_t = ep::IbgdaState;

namespace ep {
namespace ibgda {

static __device__ const IbgdaState kStandIn = {1, 1};  // lets a kernel whose host forgot the state come to its end

EP_DEVICE const IbgdaState* state() { return &reinterpret_cast<const HeapHeader*>(detail::fault_record())->ibgda; }

// The guide's run-time assertion, as a fault record: a trap would destroy the CUDA context and all data in it.
EP_DEVICE bool is_initialised() {
    if (state()->num_rc_per_pe > 0) return true;
    record_fault(kFaultIbgdaState, {kPhaseWrite, -1, -1}, 0, 0);
    return false;
}

// DeepEP numbers queue pairs 0 .. num_rc_per_pe * num_devices_initialized - 1; NICs may have fewer. Operations of one
// qp_id always share a queue pair.
EP_DEVICE int queue_pair(int qp_id) {
    return static_cast<int>(static_cast<unsigned>(qp_id) % static_cast<unsigned>(num_queue_pairs()));
}

template <typename T>
EP_DEVICE T* as_pointer(uint64_t address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace ibgda
}  // namespace ep

// How many queue pairs there are: state->num_rc_per_pe * state->num_devices_initialized to each peer.
EP_DEVICE const nvshmemi_ibgda_device_state_t* ibgda_get_state() {
    return ep::ibgda::is_initialised() ? ep::ibgda::state() : &ep::ibgda::kStandIn;
}

// The address at which rank `rank` (the caller) reaches dst_rank's copy of the symmetric address `ptr` by loads and
// stores; 0 if it cannot: RDMA is needed.
EP_DEVICE uint64_t nvshmemi_get_p2p_ptr(const uint64_t& ptr, const int& rank, const int& dst_rank) {
    if (!ep::ibgda::is_initialised()) return 0;
    if (rank == dst_rank) return ptr;
    if (!ep::reachable(dst_rank)) return 0;
    return reinterpret_cast<uint64_t>(ep::peer_ptr(ep::ibgda::as_pointer<char>(ptr), dst_rank));
}

// Writes `bytes` bytes from req_lptr to dst_pe's copy of the symmetric address req_rptr, and returns before they are
// there. All 32 lanes call with equal arguments, each with its own lane_id. To a P2P peer the warp copies; otherwise
// lane 0 posts one operation. What other lanes wrote into the source must be before the call by a __syncwarp.
//
// The source may be reused after nvshmemi_ibgda_quiet only. kAlwaysDoPostSend and message_idx tell IBGDA when to ring
// the NIC's doorbell for several requests at once; here every put is posted at once and they change nothing.
template <bool kAlwaysDoPostSend = false>
EP_DEVICE void nvshmemi_ibgda_put_nbi_warp(uint64_t req_rptr, uint64_t req_lptr, size_t bytes, int dst_pe, int qp_id,
                                           int lane_id, int message_idx) {
    (void)message_idx;
    if (ep::ibgda::is_initialised()) {
        void* const remote = ep::ibgda::as_pointer<void>(req_rptr);
        const void* const local = ep::ibgda::as_pointer<void>(req_lptr);
        if (ep::reachable(dst_pe)) {
            ep::copy_bytes<ep::kWarpUnroll>(ep::peer_ptr(static_cast<char*>(remote), dst_pe), local, bytes, lane_id,
                                            ep::kWarpSize);
        } else if (lane_id == 0 && bytes > 0) {
            ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
        }
    }
    __syncwarp();
}

// Adds to the 32-bit integer at pe's copy of the symmetric address rptr; with is_local_copy, or if pe is the caller,
// to the one at rptr itself. One lane calls.
//
// To a P2P peer the guide uses a plain atomicAdd; here it is a release at system scope, so that it comes after what
// this warp put there before (with a __syncwarp in between, as the put has), like a queue pair of IBGDA.
EP_DEVICE void nvshmemi_ibgda_amo_nonfetch_add(void* rptr, const int& value, int pe, int qp_id,
                                               bool is_local_copy = false) {
    if (!ep::ibgda::is_initialised()) return;
    uint32_t* const counter = static_cast<uint32_t*>(rptr);
    const uint32_t addend = static_cast<uint32_t>(value);
    if (is_local_copy || pe == ep::rank()) {
        ep::red_add_release_sys_u32(counter, addend);
    } else if (ep::reachable(pe)) {
        ep::red_add_release_sys_u32(ep::peer_ptr(counter, pe), addend);
    } else {
        ep::net_add_u32_nbi(counter, addend, pe, ep::ibgda::queue_pair(qp_id));
    }
}

// Waits until what this rank has posted to dst_pe on qp_id is done: on RC for no more than that, as IBGDA does; elsewhere
// for everything, as the guide's EFA functions do, which have no queue pairs. Code that is to run on both names the
// PE and the queue pair that it means.
EP_DEVICE void nvshmemi_ibgda_quiet(int dst_pe, int qp_id) {
    if (!ep::ibgda::is_initialised()) return;
    if (ep::queue_pairs_keep_order()) {
        ep::net_quiet(dst_pe, ep::ibgda::queue_pair(qp_id));
    } else {
        ep::net_quiet();
    }
}

// State for the calls of <ep/ibgda_shim.cuh>: the numbers that the host has set, and the queue pair of a qp_id.
#pragma once
#include <ep/net.cuh>

using nvshmemi_ibgda_device_state_t = ep::IbgdaState;

namespace ep {
namespace ibgda {

static __device__ const IbgdaState kStandIn = {1, 1};  // lets a kernel end whose host has not set the state

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

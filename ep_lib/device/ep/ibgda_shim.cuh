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
// an atomic add on the same qp_id is a message with its signal; but not with adaptive routing or PCIe's relaxed ordering.
// On EFA (SRD) nothing keeps that order: between the two must stand a nvshmemi_ibgda_quiet, which is right everywhere.
// tutorial_kernels/03_ibgda_shim.cu climbs there step by step. On EFA it is the CPU that posts for NVSHMEM, not the GPU
// (docs/networks.md has the sources).
//
// And not the same quiet: IBGDA waits for one queue pair to one PE, the EFA functions wait for everything. So code
// that names the wrong queue pair works on EFA, and reuses its source too early on InfiniBand.
//
// Transports: the emulator's NICs (spawn(fabric="rc" | "srd")) and P2P; on GPUs P2P or NVSHMEM, see <ep/net.cuh>.
#pragma once
#include <ep/ibgda_calls.cuh>  // nvshmemi_get_p2p_ptr, nvshmemi_ibgda_put_nbi_warp, nvshmemi_ibgda_amo_nonfetch_add
#include <ep/ibgda_state.cuh>  // ibgda_get_state
#include <ep/net.cuh>

// Waits until all operations that this rank has posted to dst_pe on qp_id are done: on RC only for these, as IBGDA
// does; elsewhere for all of this rank's, as the guide's EFA functions do, which have no queue pairs. Code that runs on
// both must name the right PE and queue pair.
EP_DEVICE void nvshmemi_ibgda_quiet(int dst_pe, int qp_id) {
    if (!ep::ibgda::is_initialised()) return;
    if (ep::queue_pairs_keep_order()) {
        ep::net_quiet(dst_pe, ep::ibgda::queue_pair(qp_id));
    } else {
        ep::net_quiet();
    }
}

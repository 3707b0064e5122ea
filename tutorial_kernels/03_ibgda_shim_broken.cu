// The kernels of 03_ibgda_shim.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// Each has the parameters of the right kernel. The first one gives the right result on our model of InfiniBand (fabric
// "rc") and a wrong one on EFA ("srd"): it passes every test on the first cluster.
#include <ep/ibgda_shim.cuh>

namespace {

EP_DEVICE uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

EP_DEVICE int queue_pair_of(int stream) {
    const auto* state = ibgda_get_state();
    return stream % (state->num_rc_per_pe * state->num_devices_initialized);
}

}  // namespace

// WRONG on EFA, RIGHT on InfiniBand while its packets take one path: the tail follows the data on the same queue pair, and
// trusts it to keep the order. SRD keeps none: the tail may overtake the data it announces, as it may on InfiniBand with
// adaptive routing or PCIe's relaxed ordering (DeepEP's issues 20 and 40). The repair is the quiet of channel_send.
extern "C" __global__ void channel_send_trusts_the_queue_pair(char* inbox, const char* outbox, size_t bytes,
                                                              int messages, int chunk, uint32_t* tails, int peer) {
    if (threadIdx.x >= ep::kWarpSize) return;
    const int channel = static_cast<int>(blockIdx.x), lane = ep::lane_id(), qp = queue_pair_of(channel);
    for (int begin = 0; begin < messages; begin += chunk) {
        const int count = min(chunk, messages - begin);
        for (int i = begin; i < begin + count; ++i) {
            const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
            nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
        }
        if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
    }
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
}

// WRONG on both: every rank adds to one counter, its owner by the GPU's atomics and the others through the NIC. A staged
// atomic writes back what the NIC read before plus one, and the GPU's addition is gone. It is right where the NIC reports
// IBV_ATOMIC_GLOB (Fabric("rc", global_atomics=True)); most report IBV_ATOMIC_HCA.
extern "C" __global__ void count_together(uint32_t* counters, int times, int target) {
    if (threadIdx.x != 0) return;
    const int qp = queue_pair_of(static_cast<int>(blockIdx.x));
    for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters, 1, target, qp);
    nvshmemi_ibgda_quiet(target, qp);
}

// WRONG on every network: the staging buffer is overwritten while the NIC may still have to read it. Only peers that
// the warp copies to by itself get the right bytes.
extern "C" __global__ void send_staged_reuses_source(char* inbox, char* staging, const char* source, size_t bytes,
                                                     int messages, uint32_t* arrived, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id(), qp = queue_pair_of(0);
    for (int i = 0; i < messages; ++i) {
        for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
        __syncwarp();
        nvshmemi_ibgda_put_nbi_warp(address(inbox + i * bytes), address(staging), bytes, peer, qp, lane, i);
    }
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
    }
}

// WRONG everywhere: the quiet stands before the puts that it should wait for.
extern "C" __global__ void send_batched_quiet_first(char* inbox, const char* outbox, size_t bytes, int messages,
                                                    uint32_t* arrived, int peer) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id(), qp = queue_pair_of(0);
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
    }
    __syncwarp();
    for (int i = 0; i < messages; ++i) {
        const size_t at = i * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    }
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
}

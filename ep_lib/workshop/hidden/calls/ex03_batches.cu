// The piece of 03_batches, as its test calls it: its kernels are called as functions, which the emulator allows.
#include <ep/ibgda_shim.cuh>
#include <ep/net.cuh>

namespace {

// How often each lane of this block has waited in a quiet. One quiet per message is right, but slow.
EP_DEVICE int* quiets() {
    __shared__ int count[ep::kWarpSize];
    return count;
}

EP_DEVICE void counted_shim_quiet(int peer, int qp) {
    ++quiets()[ep::lane_id()];
    nvshmemi_ibgda_quiet(peer, qp);
}

}  // namespace

namespace ep {

EP_DEVICE void counted_net_quiet(int peer = kAllPeers, int qp = kAllQueuePairs) {
    ++quiets()[lane_id()];
    net_quiet(peer, qp);
}

}  // namespace ep

#define nvshmemi_ibgda_quiet counted_shim_quiet
#define net_quiet counted_net_quiet
#pragma push_macro("__global__")
#undef __global__
#define __global__ __device__ inline  // what no test calls is read, and not compiled
#include <03_ibgda_shim.cu>
#pragma pop_macro("__global__")

#include "ex03_batches.cuh"

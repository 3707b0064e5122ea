// A small program as it was written for IBGDA and InfiniBand, in the style of DeepEP: notebook 03 shows what `ep-lib
// migrate` says about it. It is only read, never compiled: its include belongs to another library.
#include <nvshmem.h>

#include "ibgda_device.cuh"

__global__ void send(uint64_t inbox, uint64_t outbox, size_t bytes, int messages, int* tail, int peer) {
    const int lane = threadIdx.x % 32, qp = blockIdx.x;
    for (int i = 0; i < messages; ++i) {
        nvshmemi_ibgda_put_nbi_warp<true>(inbox + i * bytes, outbox + i * bytes, bytes, peer, qp, lane, i);
    }
    __syncwarp();
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tail + blockIdx.x, messages, peer, qp);
}

__global__ void send_carefully(uint64_t inbox, uint64_t outbox, size_t bytes, int messages, int* tail, int peer) {
    const int lane = threadIdx.x % 32, qp = blockIdx.x;
    for (int i = 0; i < messages; ++i) {
        nvshmemi_ibgda_put_nbi_warp<true>(inbox + i * bytes, outbox + i * bytes, bytes, peer, qp, lane, i);
        if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
        __syncwarp();
    }
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tail + blockIdx.x, messages, peer, qp);
}

int main() {
    nvshmem_init();
    char* heap = static_cast<char*>(nvshmem_malloc(1 << 20));
    const uint64_t inbox = reinterpret_cast<uint64_t>(heap), outbox = inbox + (1 << 18);
    int* tail = reinterpret_cast<int*>(heap + (1 << 19));
    send<<<16, 32>>>(inbox, outbox, 1024, 16, tail, 1 - nvshmem_my_pe());
    cudaDeviceSynchronize();
    nvshmem_finalize();
}

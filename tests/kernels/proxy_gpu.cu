// Kernels that only GPUs and their proxies can get through, or not.
#include <ep/net.cuh>
#include <ep/proxy_operations.cuh>
#include <ep/sealed_ring.cuh>

// All blocks wait for a signal that is on its way through the proxy while they leave it no SM.
extern "C" __global__ void all_wait(uint64_t* inbox, uint64_t* outbox, int words, uint64_t* signal, int peer,
                                    uint64_t* wrong) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (int i = 0; i < words; ++i) outbox[i] = i + 1;
        ep::net_put_signal_nbi(inbox, outbox, words * sizeof(uint64_t), signal, 1, peer, 0, ep::NetSignal::kSet);
    }
    if (!ep::wait_until_ge_block(signal, 1, {ep::kPhaseSignal, peer, -1})) return;
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
        if (inbox[i] != i + 1) ep::red_add_release_gpu_u64(wrong, 1);
    }
}

// A command for a rank that does not exist.
extern "C" __global__ void wrong_rank(uint64_t* signal, int peer) {
    const ep::ProxyRing& ring = ep::transport::proxy::ring_of(0);
    ep::sealed::push(ring, ep::proxy_add(signal, 1, sizeof(uint64_t), peer));
    ep::sealed::flush(ring);
}

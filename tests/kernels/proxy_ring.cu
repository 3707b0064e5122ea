// Kernels that push into a proxy's ring, right and wrong: `how` says which.
#include <ep/net.cuh>
#include <ep/proxy_operations.cuh>
#include <ep/proxy_ring.cuh>
#include <ep/sealed_ring.cuh>

#ifndef EP_EMULATOR  // a world's rings are sealed on GPUs
#define proxy_push sealed::push
#define proxy_push_warp sealed::push_warp
#define proxy_flush sealed::flush
#define proxy_wait sealed::wait
#endif

constexpr int kRight = 0, kSignalFirst = 1, kSourceReused = 2, kNoBarrier = 3, kNoFence = 4;

extern "C" __global__ void send(uint64_t* inbox, uint64_t* outbox, int words, uint64_t* signal, int peer, int how) {
    const ep::ProxyRing& ring = ep::transport::proxy::ring_of(0);
    for (int i = threadIdx.x; i < words; i += blockDim.x) outbox[i] = i + 1;
    if (how != kNoBarrier) __syncthreads();
    if (threadIdx.x != 0) return;
    const ep::ProxyCommand write = ep::proxy_write(inbox, outbox, words * sizeof(uint64_t), peer);
    const ep::ProxyCommand add = ep::proxy_add(signal, 1, sizeof(uint64_t), peer);
    if (how == kSignalFirst) {
        ep::proxy_push(ring, add);
        ep::proxy_push(ring, write);
    } else if (how == kNoFence) {
        ep::proxy_push(ring, write);
        ep::proxy_push(ring, add);
    } else {
        ep::proxy_push(ring, write);
        ep::proxy_push(ring, ep::proxy_command(ep::kProxyFence, peer));
        ep::proxy_push(ring, add);
    }
    if (how != kSourceReused && !ep::proxy_flush(ring)) return;
    outbox[0] = 77;
}

extern "C" __global__ void receive(const uint64_t* inbox, int words, const uint64_t* signal, uint64_t* out, int peer) {
    if (!ep::wait_until_ge_block(signal, 1, {ep::kPhaseSignal, peer, -1})) return;
    for (int i = threadIdx.x; i < words; i += blockDim.x) out[i] = inbox[i];
}

// Many commands from many warps and threads through one ring, one by one or a warp at a time.
extern "C" __global__ void add_many(uint64_t* counter, int each, int peer, bool by_warps) {
    const ep::ProxyRing& ring = ep::transport::proxy::ring_of(0);
    const ep::ProxyCommand add = ep::proxy_add(counter, 1, sizeof(uint64_t), peer);
    uint64_t number = 0;
    for (int i = 0; i < each; ++i) {
        if (!(by_warps ? ep::proxy_push_warp(ring, add, ep::kWarpSize, &number) : ep::proxy_push(ring, add, &number)))
            return;
    }
    ep::proxy_wait(ring, number);
}

// A pusher of its own, which looks at the credit without acquire, or not at all.
constexpr int kRelaxedCredit = 1, kNoCredit = 2;

extern "C" __global__ void fill_slots(uint64_t* counter, int commands, int peer, int how) {
    const ep::ProxyRing& ring = ep::transport::proxy::ring_of(0);
    const ep::ProxyCommand add = ep::proxy_add(counter, 1, sizeof(uint64_t), peer);
    for (int i = 0; i < commands; ++i) {
        if (how == kRight) {
            ep::proxy_push(ring, add);
            continue;
        }
        const uint64_t number = ring.producer->head++;
        if (how == kRelaxedCredit) {
            while (ep::ld_relaxed_sys_u64(&ring.credits->taken) + ring.num_slots <= number) {
            }
        }
        ep::proxy_fill(ring, add, number);
    }
}

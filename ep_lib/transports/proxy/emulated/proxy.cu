// The proxy of an emulated rank: like the native proxy (native/engine.cpp), but as threads of a kernel that never ends,
// so that a seed schedules them and the checker sees their accesses. They post to the simulated NIC.
#include <ep/net.cuh>
#include <ep/proxy_ring.cuh>

namespace {

__device__ char* heap_at(uint64_t offset) { return ep::detail::heap_base(ep::rank()) + offset; }

__device__ void post(const ep::ProxyCommand& c) {
    char *const target = heap_at(c.target), *const source = heap_at(c.source);
    uint64_t* const signal = reinterpret_cast<uint64_t*>(heap_at(c.signal));
    const int peer = c.peer, queue_pair = c.queue_pair;
    epemu_on_behalf(c.place);
    switch (c.op) {
        case ep::kProxyWrite: ep::net_put_nbi(target, source, c.bytes, peer, queue_pair); break;
        case ep::kProxyWriteSetSignal:
            ep::net_put_signal_nbi(target, source, c.bytes, signal, c.value, peer, queue_pair, ep::NetSignal::kSet);
            break;
        case ep::kProxyWriteAddSignal:
            ep::net_put_signal_nbi(target, source, c.bytes, signal, c.value, peer, queue_pair, ep::NetSignal::kAdd);
            break;
        case ep::kProxyAdd32:
            ep::net_atomic_add_u32_nbi(reinterpret_cast<uint32_t*>(signal), static_cast<uint32_t>(c.value), peer,
                                       queue_pair);
            break;
        case ep::kProxyAdd64: ep::net_atomic_add_u64_nbi(signal, c.value, peer, queue_pair); break;
        case ep::kProxyRead: ep::net_get_nbi(target, source, c.bytes, peer, queue_pair); break;
        case ep::kProxyFence: ep::net_fence(peer, queue_pair); break;
    }
    epemu_on_behalf(0);
}

// Copies a command without its number, which one thread may store while another reads it.
__device__ ep::ProxyCommand copy_of(const ep::ProxyCommand* slot) {
    constexpr int kWords = offsetof(ep::ProxyCommand, number) / sizeof(uint64_t);
    ep::ProxyCommand command = {};
    const uint64_t* const from = reinterpret_cast<const uint64_t*>(slot);
    uint64_t* const to = reinterpret_cast<uint64_t*>(&command);
    for (int i = 0; i < kWords; ++i) to[i] = from[i];
    return command;
}

__device__ void take_and_post(const ep::ProxyRing& ring) {
    for (uint64_t number = 0;; ++number) {
        const ep::ProxyCommand* const slot = ring.slots + (number & (ring.num_slots - 1));
        while (ep::ld_acquire_sys_u64(&slot->number) != number + 1) {
        }
        const ep::ProxyCommand command = copy_of(slot);
        ep::st_release_sys_u64(&ring.credits->taken, number + 1);
        post(command);
        ep::st_release_sys_u64(&ring.credits->posted, number + 1);
    }
}

__device__ void complete(const ep::ProxyRing& ring) {
    for (uint64_t done = 0;;) {
        uint64_t posted;
        while ((posted = ep::ld_acquire_sys_u64(&ring.credits->posted)) == done) {
        }
        ep::net_quiet();
        ep::st_release_sys_u64(&ring.credits->completed, posted);
        done = posted;
    }
}

}  // namespace

// Two blocks of one thread for each ring: one posts, the other waits for completions. The poster never learns of
// completions, so the only order is the NIC's.
extern "C" __global__ void ep_proxy(const ep::ProxyRing* rings) {
    const ep::ProxyRing ring = rings[blockIdx.x / 2];
    if (blockIdx.x % 2 == 0) {
        take_and_post(ring);
    } else {
        complete(ring);
    }
}

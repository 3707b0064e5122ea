// The commands of kernels to a proxy, and the counts of both: the structs of <ep/proxy_ring.cuh>, which kernels share
// with the native proxy (ep_lib/transports/proxy/native) and with Python, which reads their layout from this file.
#pragma once
#include <stdint.h>

namespace ep {

enum ProxyOp : uint16_t {
    kProxyNothing = 0,     // completes at once: what a benchmark pushes
    kProxyWrite,           // this rank's `source` to the peer's `target`
    kProxyWriteSetSignal,  // the same; then the peer's 64-bit `signal` becomes `value`
    kProxyWriteAddSignal,  // the same; then `value` is added to it
    kProxyAdd32,           // adds `value` to the peer's counter at `signal`
    kProxyAdd64,
    kProxyRead,   // the peer's `source` to this rank's `target`
    kProxyFence,  // what follows to this peer on this queue pair arrives after what was pushed before
    kNumProxyOps
};

// One slot of a ring: one cache line. Offsets are in the symmetric heap.
struct alignas(64) ProxyCommand {
    uint64_t target;
    uint64_t source;
    uint64_t bytes;
    uint64_t signal;
    uint64_t value;
    uint16_t op;
    uint16_t peer;
    uint16_t queue_pair;
    uint16_t seal;    // of a ring behind PCIe (<ep/sealed_ring.cuh>)
    uint64_t place;   // on the emulator: the line of the kernel that pushed it; 0 elsewhere
    uint64_t number;  // of the command in its ring, plus 1. Written last: then the slot is full.
};

// The proxy's counts. The kernel looks at `taken` and `completed`, each in a line of its own.
struct alignas(64) ProxyCredits {
    uint64_t taken;  // commands that the proxy has copied out of their slots, which may be filled again
    uint64_t unused_1[7];
    uint64_t completed;  // commands that are done: sources may be reused, targets are written
    uint64_t unused_2[7];
    uint64_t posted;  // between the threads of a proxy: commands that were handed to the NIC
    uint64_t unused_3[7];
};

// The kernels' counts, in memory of the GPU.
struct alignas(64) ProxyProducer {
    uint64_t head;  // commands for which a thread has reserved a slot
    uint64_t room;  // a value that `taken` has had, so that most pushes need not read the host's memory
    uint64_t unused[6];
};

// One ring, as kernels name it. `slots` and `credits` lie in memory that the host maps to the GPU; all is zero before the
// first command.
struct ProxyRing {
    ProxyCommand* slots;
    ProxyCredits* credits;
    ProxyProducer* producer;
    uint64_t num_slots;  // a power of two, at least 32: a warp pushes that many at a time
    uint64_t sealed;     // 1: PCIe lies between the kernels and `slots` (<ep/sealed_ring.cuh>)
};

constexpr int kProxySealShift = 48;
constexpr uint64_t kProxyOffsetMask = (uint64_t{1} << kProxySealShift) - 1;

// The rings of a rank whose transport is the proxy: the head of its symmetric heap has the address.
struct ProxyRings {
    const ProxyRing* rings;
    int32_t count;
    int32_t num_queue_pairs;  // to each peer
    int32_t keeps_order;      // do the proxy's NIC and its queue pairs deliver in order?
    int32_t reserved;
};

static_assert(sizeof(ProxyCommand) == 64 && sizeof(ProxyCredits) == 192, "lines of 64 bytes, of one writer each");

}  // namespace ep

// Operations that a NIC carries out: one thread posts, and the data moves by itself, later.
//
//     ep::net_put_nbi(dst_mine, src, bytes, peer, qp);       // nbi: non-blocking, returns at once
//     ep::net_quiet(peer, qp);                               // now it is there, and `src` may be reused
//
//     net_put_nbi, net_get_nbi                    data to or from the peer's copy of a symmetric object
//     net_put_nbi_block,                          the same, called by a whole block: all threads copy, or one of them
//     net_put_signal_nbi_block                    posts one request for all
//     net_put_signal_nbi                          data, then a 64-bit signal: never seen before its data
//     net_atomic_add_u32_nbi, _u64_nbi            adds to the peer's copy of a counter
//     net_fence(peer, qp)                         what is posted later arrives after what was posted before (gets: see
//                                                 there)
//     net_quiet(peer, qp)                         waits until all that was posted before is done
//
// A queue pair is a numbered stream of operations to one peer; kAllQueuePairs and kAllPeers mean every one.
//
// What a NIC promises, and what it does not:
//   * The source is read at any moment until quiet. Overwriting it earlier sends the new bytes, or some of both.
//   * Operations of different queue pairs are unordered, always.
//   * Operations of one queue pair arrive in order on RC (InfiniBand, RoCE), but not with adaptive routing or PCIe's
//     relaxed ordering, and in ANY order on SRD (EFA). Between a put and the signal that announces it, portable code has
//     a quiet or a fence, or uses net_put_signal_nbi. Sources: docs/networks.md.
//   * An add is atomic among the adds that come by the same NIC, which reads, adds and writes back: an atomic of a GPU on
//     the same counter may get lost in between. A counter should have one kind of writer.
//   * A get may still read when what was posted behind it is written, on RC too: net_fence or net_quiet between a get and
//     a put to the same place.
//
// Sources, targets and counters lie in the symmetric heap, the only memory that is registered with NICs.
//
// The calling thread's own writes to the source come before the post. Those of other threads do if a barrier
// (__syncwarp, __syncthreads) stands in between. A reader acquires the signal (<ep/wait.cuh>), then reads the data.
//
// What stands behind each name is <ep/transport.cuh>, one in each folder of ep_lib/transports: the compiler searches the
// folder of the transport that was asked for. Each has, in the namespace ep::transport: reachable, num_queue_pairs,
// keeps_order, net_put, net_put_block, net_get, net_put_signal, net_put_signal_block, net_add, net_fence, net_quiet.
//
//   emulated           the simulated NICs of spawn(fabric=...), also to peers of the same node and to this rank itself
//   p2p                stores over NVLink or PCIe, which order more than a NIC does; nccl has them too, in memory that
//                      NCCL has mapped, also on other hosts of an NVLink domain
//   nvshmem            NVSHMEM's operations, which take whatever reaches the peer: P2P or a NIC
//   proxy              commands to a thread of the host, which posts them (<ep/proxy_ring.cuh>)
//   nixl               NIXL's device API, that is UCX's: stores over NVLink or PCIe, as its wheels are built today
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/transport.cuh>

namespace ep {

constexpr int kAllPeers = -1;
constexpr int kAllQueuePairs = -1;

enum class NetSignal { kSet, kAdd };

// True for this rank itself and for peers whose memory its loads and stores reach.
EP_DEVICE bool reachable(int peer) { return transport::reachable(peer); }

// How many queue pairs there are to each peer.
EP_DEVICE int num_queue_pairs() { return transport::num_queue_pairs(); }

// Does a queue pair deliver in the order in which it was given operations, as RC does? Portable code does not ask.
EP_DEVICE bool queue_pairs_keep_order() { return transport::keeps_order(); }

// Writes `bytes` bytes from `src` to the peer's copy of `dst_mine`.
EP_DEVICE void net_put_nbi(void* dst_mine, const void* src, size_t bytes, int peer, int qp = 0) {
    transport::net_put(peer, qp, dst_mine, src, bytes);
}

// The same by all threads of a block, with equal arguments. It neither begins nor ends with a barrier: call __syncthreads
// before it if other threads wrote into the source, and after it before a signal.
EP_DEVICE void net_put_nbi_block(void* dst_mine, const void* src, size_t bytes, int peer, int qp = 0) {
    transport::net_put_block(peer, qp, dst_mine, src, bytes);
}

// Reads `bytes` bytes of the peer's copy of `src_mine` into `dst`, which is complete after quiet only.
EP_DEVICE void net_get_nbi(void* dst, const void* src_mine, size_t bytes, int peer, int qp = 0) {
    transport::net_get(peer, qp, dst, src_mine, bytes);
}

// A put, and a signal that is seen after all of this put's bytes. It says nothing about other puts.
EP_DEVICE void net_put_signal_nbi(void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine, uint64_t value,
                                  int peer, int qp = 0, NetSignal what = NetSignal::kAdd) {
    transport::net_put_signal(peer, qp, dst_mine, src, bytes, signal_mine, value, what == NetSignal::kAdd);
}

// The same by all threads of a block, with equal arguments. Call __syncthreads before it if other threads wrote into the
// source.
EP_DEVICE void net_put_signal_nbi_block(void* dst_mine, const void* src, size_t bytes, uint64_t* signal_mine,
                                        uint64_t value, int peer, int qp = 0, NetSignal what = NetSignal::kAdd) {
    transport::net_put_signal_block(peer, qp, dst_mine, src, bytes, signal_mine, value, what == NetSignal::kAdd);
}

// Adds to the peer's copy of a counter.
EP_DEVICE void net_atomic_add_u32_nbi(uint32_t* counter_mine, uint32_t value, int peer, int qp = 0) {
    transport::net_add(peer, qp, counter_mine, value, sizeof(uint32_t));
}
EP_DEVICE void net_atomic_add_u64_nbi(uint64_t* counter_mine, uint64_t value, int peer, int qp = 0) {
    transport::net_add(peer, qp, counter_mine, value, sizeof(uint64_t));
}

// Their old names.
[[deprecated("use net_atomic_add_u32_nbi")]] EP_DEVICE void net_add_u32_nbi(uint32_t* counter_mine, uint32_t value,
                                                                            int peer, int qp = 0) {
    net_atomic_add_u32_nbi(counter_mine, value, peer, qp);
}
[[deprecated("use net_atomic_add_u64_nbi")]] EP_DEVICE void net_add_u64_nbi(uint64_t* counter_mine, uint64_t value,
                                                                            int peer, int qp = 0) {
    net_atomic_add_u64_nbi(counter_mine, value, peer, qp);
}

// What this rank posts to `peer` from now on arrives after what it has posted there before. It waits for nothing.
//
// That holds for puts, signals and additions. Gets: the simulated NICs keep a put behind the gets before the fence, as
// RC's fence does; NVSHMEM's fence says nothing of gets. So portable code has a quiet between a get and a put to what it
// reads. That a get has arrived in `dst` no fence tells, only quiet.
EP_DEVICE void net_fence(int peer, int qp = kAllQueuePairs) { transport::net_fence(peer, qp); }

// Waits until what this rank has posted there is done: sources may be reused, targets are written, gets have arrived.
// It says nothing about other peers and queue pairs. Some transports wait for more than they are asked for; code that
// relies on that is wrong on others.
EP_DEVICE void net_quiet(int peer = kAllPeers, int qp = kAllQueuePairs) {
    transport::net_quiet(peer, qp);
    fence_sys();  // a NIC does not order plain stores to P2P peers
}

}  // namespace ep

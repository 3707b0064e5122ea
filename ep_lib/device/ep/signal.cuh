// Signals: 64-bit counters in the symmetric heap that tell a peer "what I wrote before this is there".
//
// THE RULE: data, then synchronise the writers, then one thread signals with release at system scope; the reader
// acquires at system scope, then reads the data. Never the reverse.
//
//   who wrote        between data and signal    why it is enough
//   this thread      nothing                    program order; the release comes after all this thread wrote before
//   this warp        __syncwarp()               the barrier puts all lanes' stores before the signalling lane's release
//   this block       __syncthreads()            the same, for all threads of the block
//   several blocks   each block signals its own, or counts down an atom_add_acq_rel_gpu and the last one signals
//
// Precisely (PTX ISA, Memory Consistency Model). A release and an acquire that reads its value synchronise ("Release
// and Acquire Patterns"), if both are strong and their scopes include each other's thread ("Morally strong
// operations"). A barrier synchronises its participants too. Causality order is program order joined with these edges,
// and it is transitive ("Causality Order"): a store of thread 7 precedes the barrier, which precedes thread 0's
// st.release.sys, which precedes the peer's ld.acquire.sys, which precedes the peer's load of the data. The barrier's
// own scope is only the block, but each edge only needs to reach its two ends; the last release publishes everything
// before it in causality order, not only its own thread's stores. So no additional fence is needed. A __shfl_sync
// instead of a barrier hands over a value but orders no memory. A relaxed or volatile signal orders nothing, unless a
// fence.acq_rel.sys stands between data and signal (a fence and a relaxed store form a release pattern).
//
// This holds where the GPU itself stores to the peer (NVLink, PCIe P2P). Behind a NIC the transport must keep the
// order: RC queue pairs do, EFA's SRD does not.
//
// Counters only grow: a receiver waits for ">=", so no reset is needed between rounds and no signal can be missed.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

namespace ep {

// Adds `value` to the peer's copy of *signal_mine. Many senders may add to one signal. One thread calls.
EP_DEVICE void signal_add(uint64_t* signal_mine, uint64_t value, int peer) {
    red_add_release_sys_u64(peer_ptr(signal_mine, peer), value);
}

// Stores `value` into the peer's copy of *signal_mine: cheaper than adding, for a signal with a single sender.
EP_DEVICE void signal_set(uint64_t* signal_mine, uint64_t value, int peer) {
    st_release_sys_u64(peer_ptr(signal_mine, peer), value);
}

// Reads this rank's own signal with acquire: what was published before the value seen may be read next.
EP_DEVICE uint64_t read_signal(const uint64_t* signal) { return ld_acquire_sys_u64(signal); }

// Waits with a limit: ep::wait_until_ge(signal, expected, {phase, peer, slot}) of <ep/wait.cuh>.

}  // namespace ep

// Loads, stores, atomics and fences whose names carry everything that matters:
//
//     operation _ ordering _ scope _ width        ld_acquire_sys_u64, st_release_sys_u32, atom_add_acq_rel_gpu_u64
//
//     ld_{relaxed,acquire}_{gpu,sys}_{u32,u64}(address) -> value
//     st_{relaxed,release}_{gpu,sys}_{u32,u64}(address, value)
//     red_add_{relaxed,release}_{gpu,sys}_{u32,u64}(address, value)        adds, returns nothing: cheaper
//     atom_add_{relaxed,acquire,release,acq_rel}_{gpu,sys}_{u32,u64}(address, value) -> old value
//     atom_exch_..., atom_cas_...(address, compare, value) -> old value    as above
//     ld_volatile_{u32,u64}, st_volatile_{u32,u64}                         not torn, not cached, unordered
//     {ld,st}_relaxed_sys_u64x2                                            two words in one access, see <ep/packet.cuh>
//     fence_sys(), fence_gpu()                                             acquire-release fences
//     ld_nc_v4, ld_na_v4, st_na_v4                                         16 bytes of bulk data, see below
//     globaltimer_ns(), clock_cycles(), sleep_ns(ns)
//
// Orderings. `relaxed` is atomic and coherent, but orders nothing else. `release` publishes: a thread that sees the value
// with an `acquire` also sees everything that came before the release. "Before" means in this thread, and in every
// thread whose work reached this one through a barrier (__syncthreads, __syncwarp) or a release and an acquire. PTX ISA,
// chapter Memory Consistency Model: "Release and Acquire Patterns" and "Causality Order"; causality order is transitive,
// and the block-level rule of <ep/signal.cuh> follows from that.
//
// Scopes. `gpu`: all threads of this GPU. `sys`: the threads of every GPU of the host, and the CPU. A flag that a peer
// reads or writes needs sys. Two operations synchronise only if each one's scope includes the other's thread.
#pragma once
#include <ep/platform.cuh>

namespace ep {

// Acquire-release fences: what came before stays before what comes after, for threads that communicate at that scope.
EP_DEVICE void fence_sys() { fence_acq_rel_sys(); }
EP_DEVICE void fence_gpu() { fence_acq_rel_gpu(); }

// Bulk data: 16-byte aligned, unordered, and kept out of the L1 cache, which such streams would only flush.
//   ld_nc_v4   through the read-only path: ONLY for memory that is not written while the kernel runs
//   ld_na_v4   for memory that this kernel may have written earlier (and has synchronised since)
//   st_na_v4   stores to own or peer memory

}  // namespace ep

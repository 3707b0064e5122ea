// What the hidden tests of several exercises share on the device. Kernels here record what they saw and know no expected
// values. Where the checker may name a line of a test to a learner, a comment "role: ..." says what to show instead.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

// What tests call of the library and of CUDA, as it is here, before the piece: whatever a piece declares by these names, a
// test's calls are of these (ep_lib/workshop/bound.py). A test that calls more has such lines before it includes the piece.
namespace held {
using ::__all_sync;
using ::__ffs;
using ::__float_as_int;
using ::__int_as_float;
using ::__shfl_sync;
using ::__syncthreads;
using ::__syncwarp;
using ::atomicAdd;
using ::max;
using ::min;
using ep::atom_add_acq_rel_gpu_u32;
using ep::atom_add_acq_rel_sys_u64;
using ep::atom_add_relaxed_gpu_u64;
using ep::atom_cas_relaxed_sys_u64;
using ep::fence_sys;
using ep::has_fault;
using ep::lane_id;
using ep::ld_acquire_sys_u32;
using ep::ld_acquire_sys_u64;
using ep::ld_relaxed_sys_u64;
using ep::ld_relaxed_sys_u64x2;
using ep::num_ranks;
using ep::peer_ptr;
using ep::poll_until;
using ep::put_warp;
using ep::rank;
using ep::record_fault;
using ep::red_add_release_sys_u32;
using ep::red_add_release_sys_u64;
using ep::signal_add;
using ep::sleep_ns;
using ep::st_relaxed_gpu_u32;
using ep::st_relaxed_sys_u64;
using ep::st_relaxed_sys_u64x2;
using ep::st_release_sys_u64;
using ep::thread_in_block;
using ep::threads_in_block;
using ep::warp_id;
using ep::warps_in_block;
using ep::detail::fault_record;
}  // namespace held

// Templates as tests call them: once they are there, C++ takes no others of these types.
template char* ep::peer_ptr(char*, int);
template float* ep::peer_ptr(float*, int);
template int* ep::peer_ptr(int*, int);
template int4* ep::peer_ptr(int4*, int);
template uint32_t* ep::peer_ptr(uint32_t*, int);
template uint64_t* ep::peer_ptr(uint64_t*, int);
template void ep::put_warp<ep::kWarpUnroll>(void*, const void*, size_t, int);

// A part of a test: compiled once, however often it is called, and by itself. All parts in one function would take the
// compiler twice as long.
#define GRADER_PART __device__ __noinline__

EP_DEVICE void let_others_run(int64_t times) {
    for (int64_t i = 0; i < times; ++i) ep::sleep_ns(100);
}

// Last bytes first, so that it looks early at what a sender writes late.
EP_DEVICE void look_at(char* seen, const char* area, int64_t bytes) {
    for (int64_t i = bytes - 1; i >= 0; --i) {
        seen[i] = area[i];  // role: the receiver, which reads the data after the signal
    }
}

// The end of a kernel in which not all threads call the piece, where the others wait for those that do. A __syncthreads()
// in what one warp calls meets theirs, which the checker tells (`beside` of hidden/__init__.py adds warps that call
// nothing); a __syncwarp() in what one thread calls waits for lanes that are here. Every run ends here, whether such
// threads are there or not: which it is, a kernel does not know, and so no piece does.
EP_DEVICE void meet_at_the_end() {
    __syncthreads();  // role: the other threads of the block, which are no part of this call
}

// Of functions that each thread calls for itself: lanes 1 to 31 of every warp do, as number 0, 1, ... of the grid's. -1 for
// lane 0, which calls nothing.
constexpr int kCallers = ep::kWarpSize - 1;  // of a warp

EP_DEVICE int caller() {
    const int warp = static_cast<int>(blockIdx.x) * ep::warps_in_block() + ep::warp_id();
    return ep::lane_id() == 0 ? -1 : warp * kCallers + ep::lane_id() - 1;
}

// What the host would raise as PeerTimeout: for a test in which a wait should run into its limit.
EP_DEVICE void forget_fault() { ep::detail::fault_record()->code = ep::kFaultNone; }

// Whether what the host would raise names who was waited for. A wait that records nothing names nobody else.
EP_DEVICE bool blames(const ep::WaitInfo& waited) {
    const ep::FaultRecord* const fault = ep::detail::fault_record();
    return fault->code == ep::kFaultNone ||
           (fault->phase == waited.phase && fault->peer == waited.peer && fault->slot == waited.slot);
}

// A race on purpose, which changes nothing: if the checker does not report it, it was switched off. It is one between a
// plain read and a plain write, so both have to be seen: volatile accesses are watched by other functions.
EP_DEVICE void canary(char* seen) {
    if (ep::thread_in_block() != 0) return;
    volatile char read = 0;  // so that the compiler keeps the read, and the write: it leaves out one of what was there
    if (blockIdx.x == 0) {
        read = *seen;  // canary
    } else {
        *seen = static_cast<char>(*reinterpret_cast<volatile char*>(seen) + read);  // canary
    }
}

// A struct that a piece is given and both halves use: it stays as it is. One with other types inside could run code of the
// learner's within the test's functions.
#define GRADER_STRUCT(type, bytes)                                                                \
    static_assert(sizeof(type) == bytes && __is_aggregate(type) && __is_trivially_copyable(type), \
                  "struct " #type " is given, and the tests use it as well: leave it as it is")
#define GRADER_FIELD(type, field, of) \
    static_assert(__is_same(decltype(type::field), of), "struct " #type " is given: leave " #field " as it is")

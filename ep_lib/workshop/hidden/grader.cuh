// Device code that the hidden tests of several exercises share. Kernels record what they saw and know no expected
// values. Where the checker may name a line of a test to a learner, a comment "role: ..." says what to show instead.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

// A part of a test: a function of its own, compiled once. All parts inlined into one function would take the compiler
// twice as long.
#define GRADER_PART __device__ __noinline__

EP_DEVICE void let_others_run(int64_t times) {
    for (int64_t i = 0; i < times; ++i) ep::sleep_ns(100);
}

// Reads the last bytes first: a sender writes them last, so a missing wait shows.
EP_DEVICE void look_at(char* seen, const char* area, int64_t bytes) {
    for (int64_t i = bytes - 1; i >= 0; --i) {
        seen[i] = area[i];  // role: the receiver, which reads the data after the signal
    }
}

// How far a sender has run ahead of `message`, by the signals of its slots; more messages than slots must not be there.
EP_DEVICE void note_lead(const uint64_t* arrived, int slots, uint64_t message, uint64_t* most) {
    for (int slot = 0; slot < slots; ++slot) {
        const uint64_t there = ep::ld_acquire_sys_u64(arrived + slot);
        if (there > message && there - message > *most) *most = there - message;
    }
}

// The end of a kernel: here threads that do not call the piece wait for those that do (`varied` of hidden/__init__.py
// adds warps that call nothing). A __syncthreads() in a piece that one warp calls meets this one, which the checker
// reports; a __syncwarp() in a piece that one thread calls waits for lanes that are here. Every run ends here, with or
// without such threads, so that a piece cannot detect them.
EP_DEVICE void meet_at_the_end() {
    __syncthreads();  // role: the other threads of the block, which are no part of this call
}

// For functions that each thread calls for itself: the number of this caller in the grid. Lanes 1 to 31 of every warp
// call; -1 for lane 0, which does not.
constexpr int kCallers = ep::kWarpSize - 1;  // of a warp

EP_DEVICE int caller() {
    const int warp = static_cast<int>(blockIdx.x) * ep::warps_in_block() + ep::warp_id();
    return ep::lane_id() == 0 ? -1 : warp * kCallers + ep::lane_id() - 1;
}

// Removes the fault that the host would raise as PeerTimeout, for a test in which a wait should run into its limit.
EP_DEVICE void forget_fault() { ep::detail::fault_record()->code = ep::kFaultNone; }

// Records the fault that the host would raise as PeerTimeout, and removes it.
constexpr int kFaultNumbers = 6;

EP_DEVICE void note_fault(uint64_t* noted) {
    const ep::FaultRecord* const fault = ep::detail::fault_record();
    noted[0] = static_cast<uint64_t>(fault->code);
    noted[1] = static_cast<uint64_t>(fault->phase);
    noted[2] = static_cast<uint64_t>(fault->peer);
    noted[3] = static_cast<uint64_t>(fault->slot);
    noted[4] = fault->seen;
    noted[5] = fault->expected;
    forget_fault();
}

// Whether the fault that the host would raise names this wait; also true if there is no fault.
EP_DEVICE bool blames(const ep::WaitInfo& waited) {
    const ep::FaultRecord* const fault = ep::detail::fault_record();
    return fault->code == ep::kFaultNone ||
           (fault->phase == waited.phase && fault->peer == waited.peer && fault->slot == waited.slot);
}

// A deliberate race, which changes nothing: if the checker does not report it, the checker was switched off. It is
// between a plain read and a plain write, so that both kinds must be watched (other functions watch volatile accesses).
// `any`: memory of this rank alone.
EP_DEVICE void canary(void* any) {
    char* const seen = static_cast<char*>(any);
    if (ep::thread_in_block() != 0) return;
    volatile char read = 0;  // keeps the read, and the write, which compilers omit if it stores the old value
    if (blockIdx.x == 0) {
        read = *seen;  // canary
    } else {
        *seen = static_cast<char>(*reinterpret_cast<volatile char*>(seen) + read);  // canary
    }
}

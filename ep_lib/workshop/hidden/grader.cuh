// What the hidden tests of several exercises share on the device. Kernels here record what they saw and know no expected
// values. Where the checker may name a line of a test to a learner, a comment "role: ..." says what to show instead.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

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
    volatile char read = 0;  // so that the compiler keeps the read
    if (blockIdx.x == 0) {
        read = *seen;  // canary
    } else {
        *seen = *reinterpret_cast<volatile char*>(seen);  // canary
    }
}

// A struct that a piece is given and both halves use: it stays as it is. One with other types inside could run code of the
// learner's within the test's functions.
#define GRADER_STRUCT(type, bytes)                                                                \
    static_assert(sizeof(type) == bytes && __is_aggregate(type) && __is_trivially_copyable(type), \
                  "struct " #type " is given, and the tests use it as well: leave it as it is")
#define GRADER_FIELD(type, field, of) \
    static_assert(__is_same(decltype(type::field), of), "struct " #type " is given: leave " #field " as it is")

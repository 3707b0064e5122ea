// The primitives on the emulator: calls into its runtime, which gives each its order and scope and feeds the checker.
// <ep/memory.cuh> documents each one. On the GPU the same names are inline PTX.
#pragma once
#include <ep/platform.cuh>
#include <ep_emulator/abi.h>

// A function for rare cases. A finding can only name the line that called it if it is inlined.
#define EP_DEVICE_RARE EP_DEVICE

namespace ep {

#define EP_CPU_ALL(SCOPE, SCOPE_ENUM, BITS)                \
    EP_CPU_LD(relaxed, RELAXED, SCOPE, SCOPE_ENUM, BITS)   \
    EP_CPU_LD(acquire, ACQUIRE, SCOPE, SCOPE_ENUM, BITS)   \
    EP_CPU_ST(relaxed, RELAXED, SCOPE, SCOPE_ENUM, BITS)   \
    EP_CPU_ST(release, RELEASE, SCOPE, SCOPE_ENUM, BITS)   \
    EP_CPU_ATOM(relaxed, RELAXED, SCOPE, SCOPE_ENUM, BITS) \
    EP_CPU_ATOM(acquire, ACQUIRE, SCOPE, SCOPE_ENUM, BITS) \
    EP_CPU_ATOM(release, RELEASE, SCOPE, SCOPE_ENUM, BITS) \
    EP_CPU_ATOM(acq_rel, ACQ_REL, SCOPE, SCOPE_ENUM, BITS) \
    EP_CPU_RED(relaxed, RELAXED, SCOPE, SCOPE_ENUM, BITS)  \
    EP_CPU_RED(release, RELEASE, SCOPE, SCOPE_ENUM, BITS)
#define EP_CPU_LD(ORDER, ORDER_ENUM, SCOPE, SCOPE_ENUM, BITS)                                \
    EP_DEVICE uint##BITS##_t ld_##ORDER##_##SCOPE##_u##BITS(const uint##BITS##_t* address) { \
        return static_cast<uint##BITS##_t>(                                                  \
            epemu_load(address, BITS / 8, EPEMU_##ORDER_ENUM, EPEMU_SCOPE_##SCOPE_ENUM));    \
    }
#define EP_CPU_ST(ORDER, ORDER_ENUM, SCOPE, SCOPE_ENUM, BITS)                                      \
    EP_DEVICE void st_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) { \
        epemu_store(address, value, BITS / 8, EPEMU_##ORDER_ENUM, EPEMU_SCOPE_##SCOPE_ENUM);       \
    }
#define EP_CPU_ATOM(ORDER, ORDER_ENUM, SCOPE, SCOPE_ENUM, BITS)                                                        \
    EP_DEVICE uint##BITS##_t atom_add_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {     \
        return static_cast<uint##BITS##_t>(                                                                            \
            epemu_found(address, epemu_atomic(EPEMU_ATOMIC_ADD, address, value, 0, BITS / 8, EPEMU_##ORDER_ENUM,       \
                                              EPEMU_SCOPE_##SCOPE_ENUM)));                                             \
    }                                                                                                                  \
    EP_DEVICE uint##BITS##_t atom_exch_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {    \
        return static_cast<uint##BITS##_t>(                                                                            \
            epemu_found(address, epemu_atomic(EPEMU_ATOMIC_EXCH, address, value, 0, BITS / 8, EPEMU_##ORDER_ENUM,      \
                                              EPEMU_SCOPE_##SCOPE_ENUM)));                                             \
    }                                                                                                                  \
    EP_DEVICE uint##BITS##_t atom_cas_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t compare,     \
                                                                  uint##BITS##_t value) {                              \
        return static_cast<uint##BITS##_t>(                                                                            \
            epemu_found(address, epemu_atomic(EPEMU_ATOMIC_CAS, address, value, compare, BITS / 8, EPEMU_##ORDER_ENUM, \
                                              EPEMU_SCOPE_##SCOPE_ENUM)));                                             \
    }
#define EP_CPU_RED(ORDER, ORDER_ENUM, SCOPE, SCOPE_ENUM, BITS)                                                     \
    EP_DEVICE void red_add_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {            \
        epemu_atomic(EPEMU_ATOMIC_ADD, address, value, 0, BITS / 8, EPEMU_##ORDER_ENUM, EPEMU_SCOPE_##SCOPE_ENUM); \
    }

EP_CPU_ALL(sys, SYSTEM, 32)
EP_CPU_ALL(sys, SYSTEM, 64)
EP_CPU_ALL(gpu, DEVICE, 32)
EP_CPU_ALL(gpu, DEVICE, 64)

#undef EP_CPU_LD
#undef EP_CPU_ST
#undef EP_CPU_ATOM
#undef EP_CPU_RED
#undef EP_CPU_ALL

EP_DEVICE uint32_t ld_volatile_u32(const uint32_t* address) {
    return static_cast<uint32_t>(epemu_load(address, 4, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM));
}
EP_DEVICE uint64_t ld_volatile_u64(const uint64_t* address) {
    return epemu_load(address, 8, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM);
}
EP_DEVICE void st_volatile_u32(uint32_t* address, uint32_t value) {
    epemu_store(address, value, 4, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM);
}
EP_DEVICE void st_volatile_u64(uint64_t* address, uint64_t value) {
    epemu_store(address, value, 8, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM);
}

EP_DEVICE void fence_acq_rel_sys() { epemu_fence(EPEMU_ACQ_REL, EPEMU_SCOPE_SYSTEM); }
EP_DEVICE void fence_acq_rel_gpu() { epemu_fence(EPEMU_ACQ_REL, EPEMU_SCOPE_DEVICE); }

// Plain accesses: the compiler's instrumentation reports them to the emulator, as one of 16 bytes thanks to this type
// (an int4 would be four).
typedef int Vector4 __attribute__((vector_size(16), aligned(4), may_alias));

EP_DEVICE int4 ld_na_v4(const int4* address) {
    const Vector4 v = *reinterpret_cast<const Vector4*>(address);
    return make_int4(v[0], v[1], v[2], v[3]);
}
EP_DEVICE int4 ld_nc_v4(const int4* address) {
    epemu_read_only(address, sizeof(int4));
    return ld_na_v4(address);
}
EP_DEVICE void st_na_v4(int4* address, int4 v) { *reinterpret_cast<Vector4*>(address) = Vector4{v.x, v.y, v.z, v.w}; }

// Two accesses: the first word is there whenever the second one is seen, which is all that a packet needs.
EP_DEVICE void st_relaxed_sys_u64x2(uint64_t* address, uint64_t first, uint64_t second) {
    epemu_store_pair(address, first, second);
}
EP_DEVICE void ld_relaxed_sys_u64x2(const uint64_t* address, uint64_t* first, uint64_t* second) {
    uint64_t words[2];
    epemu_load_pair(address, words, words + 1);
    *second = words[1];  // by the kernel's own code, which the checker sees
    *first = words[0];
}

EP_DEVICE int polls_per_clock() { return epemu_polls_per_clock(); }
EP_DEVICE void only_looks(bool from_now_on) { epemu_only_looks(from_now_on); }
EP_DEVICE uint64_t globaltimer_ns() { return epemu_globaltimer(); }
EP_DEVICE int64_t clock_cycles() { return epemu_clock64(); }
EP_DEVICE void sleep_ns(uint32_t ns) { epemu_nanosleep(ns); }

namespace detail {
EP_DEVICE uint64_t limit_clock_ns() { return epemu_limit_timer(); }  // does not count as a read of the clock in checks
constexpr bool kTraces = true;
EP_DEVICE void trace_value(const char* name, double value) { epemu_trace_value(name, value); }
}  // namespace detail

// ---- where am I among the ranks: <ep/peer.cuh> gives these their public names --------------------------------------
namespace detail {

EP_DEVICE int rank() { return epemu_rank(); }
EP_DEVICE int num_ranks() { return epemu_num_ranks(); }
EP_DEVICE char* heap_base(int rank) { return epemu_heap_base(rank); }
EP_DEVICE bool reachable(int rank) { return epemu_reachable(rank); }
EP_DEVICE const HeapHeader& heap_header() {
    return *reinterpret_cast<const HeapHeader*>(epemu_heap_base(epemu_rank()));
}
EP_DEVICE uint64_t heap_bytes() { return epemu_heap_bytes(); }
EP_DEVICE FaultRecord* fault_record() { return &reinterpret_cast<HeapHeader*>(epemu_heap_base(epemu_rank()))->fault; }
EP_DEVICE uint64_t call_site() { return epemu_call_site(); }
EP_DEVICE uint64_t timeout_ns() { return heap_header().timeout_ns; }
EP_DEVICE uint64_t wait_limit_ns(int peer, bool is_patient) {
    const HeapHeader& header = heap_header();
    if (header.give_up != 0 && !is_patient) return 0;
    if (peer >= 0 && (header.gone >> peer & 1) != 0) return 0;
    return timeout_ns() != 0 ? timeout_ns() : kDefaultTimeoutNs;
}
EP_DEVICE void show_fault(const FaultRecord*) {}  // the host reads the record itself

}  // namespace detail
}  // namespace ep

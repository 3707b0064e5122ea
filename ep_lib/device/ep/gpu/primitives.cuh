// The primitives on an NVIDIA GPU, as inline PTX. <ep/memory.cuh> documents each one.
//
// Every instruction spells out its ordering and its scope. "volatile" and the "memory" clobber keep the compiler from
// moving other accesses across it; the hardware's part is in the instruction's own qualifiers. All pointers must point
// to global memory (this GPU's or a peer's), never to shared memory.
#pragma once
#include <ep/platform.cuh>

extern "C" {
// Filled by the host before the first launch; every compiled module has its own copy.
__constant__ ep::DeviceState ep_device_state;
}

// A function for rare cases, kept out of line: kernels stay small.
#define EP_DEVICE_RARE __device__ __noinline__

// GPUs before sm_80 lack two features: the hint how much L2 fetches ahead, and sums over a warp in one instruction.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define EP_PTX_FETCH ".L2::256B"
#else
#define EP_PTX_FETCH ""

#define EP_REDUCE(NAME, TYPE, RESULT)                                         \
    EP_DEVICE TYPE __reduce_##NAME##_sync(unsigned mask, TYPE a) {            \
        for (int distance = ep::kWarpSize / 2; distance > 0; distance /= 2) { \
            const TYPE b = __shfl_xor_sync(mask, a, distance);                \
            a = RESULT;                                                       \
        }                                                                     \
        return a;                                                             \
    }
// Only for the whole warp: `mask` must be ep::kFullWarp.
EP_REDUCE(add, int, a + b)
EP_REDUCE(add, unsigned, a + b)
EP_REDUCE(or, unsigned, a | b)
EP_REDUCE(max, int, a > b ? a : b)
EP_REDUCE(max, unsigned, a > b ? a : b)
#undef EP_REDUCE
#endif

namespace ep {

#define EP_PTX_LD(ORDER, SCOPE, BITS, REG)                                                   \
    EP_DEVICE uint##BITS##_t ld_##ORDER##_##SCOPE##_u##BITS(const uint##BITS##_t* address) { \
        uint##BITS##_t value;                                                                \
        asm volatile("ld." #ORDER "." #SCOPE ".global.u" #BITS " %0, [%1];"                  \
                     : "=" REG(value)                                                        \
                     : "l"(address)                                                          \
                     : "memory");                                                            \
        return value;                                                                        \
    }
#define EP_PTX_ST(ORDER, SCOPE, BITS, REG)                                                                          \
    EP_DEVICE void st_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {                  \
        asm volatile("st." #ORDER "." #SCOPE ".global.u" #BITS " [%0], %1;" ::"l"(address), REG(value) : "memory"); \
    }
#define EP_PTX_ATOM(ORDER, SCOPE, BITS, REG)                                                                        \
    EP_DEVICE uint##BITS##_t atom_add_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {  \
        uint##BITS##_t old;                                                                                         \
        asm volatile("atom." #ORDER "." #SCOPE ".global.add.u" #BITS " %0, [%1], %2;"                               \
                     : "=" REG(old)                                                                                 \
                     : "l"(address), REG(value)                                                                     \
                     : "memory");                                                                                   \
        return old;                                                                                                 \
    }                                                                                                               \
    EP_DEVICE uint##BITS##_t atom_exch_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) { \
        uint##BITS##_t old;                                                                                         \
        asm volatile("atom." #ORDER "." #SCOPE ".global.exch.b" #BITS " %0, [%1], %2;"                              \
                     : "=" REG(old)                                                                                 \
                     : "l"(address), REG(value)                                                                     \
                     : "memory");                                                                                   \
        return old;                                                                                                 \
    }                                                                                                               \
    EP_DEVICE uint##BITS##_t atom_cas_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t compare,  \
                                                                  uint##BITS##_t value) {                           \
        uint##BITS##_t old;                                                                                         \
        asm volatile("atom." #ORDER "." #SCOPE ".global.cas.b" #BITS " %0, [%1], %2, %3;"                           \
                     : "=" REG(old)                                                                                 \
                     : "l"(address), REG(compare), REG(value)                                                       \
                     : "memory");                                                                                   \
        return old;                                                                                                 \
    }
#define EP_PTX_RED(ORDER, SCOPE, BITS, REG)                                                                 \
    EP_DEVICE void red_add_##ORDER##_##SCOPE##_u##BITS(uint##BITS##_t* address, uint##BITS##_t value) {     \
        asm volatile("red." #ORDER "." #SCOPE ".global.add.u" #BITS " [%0], %1;" ::"l"(address), REG(value) \
                     : "memory");                                                                           \
    }
#define EP_PTX_ALL(SCOPE, BITS, REG)       \
    EP_PTX_LD(relaxed, SCOPE, BITS, REG)   \
    EP_PTX_LD(acquire, SCOPE, BITS, REG)   \
    EP_PTX_ST(relaxed, SCOPE, BITS, REG)   \
    EP_PTX_ST(release, SCOPE, BITS, REG)   \
    EP_PTX_ATOM(relaxed, SCOPE, BITS, REG) \
    EP_PTX_ATOM(acquire, SCOPE, BITS, REG) \
    EP_PTX_ATOM(release, SCOPE, BITS, REG) \
    EP_PTX_ATOM(acq_rel, SCOPE, BITS, REG) \
    EP_PTX_RED(relaxed, SCOPE, BITS, REG)  \
    EP_PTX_RED(release, SCOPE, BITS, REG)

EP_PTX_ALL(sys, 32, "r")
EP_PTX_ALL(sys, 64, "l")
EP_PTX_ALL(gpu, 32, "r")
EP_PTX_ALL(gpu, 64, "l")

#undef EP_PTX_LD
#undef EP_PTX_ST
#undef EP_PTX_ATOM
#undef EP_PTX_RED
#undef EP_PTX_ALL

EP_DEVICE uint32_t ld_volatile_u32(const uint32_t* address) { return *static_cast<const volatile uint32_t*>(address); }
EP_DEVICE uint64_t ld_volatile_u64(const uint64_t* address) { return *static_cast<const volatile uint64_t*>(address); }
EP_DEVICE void st_volatile_u32(uint32_t* address, uint32_t value) { *static_cast<volatile uint32_t*>(address) = value; }
EP_DEVICE void st_volatile_u64(uint64_t* address, uint64_t value) { *static_cast<volatile uint64_t*>(address) = value; }

EP_DEVICE void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
EP_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

EP_DEVICE int4 ld_nc_v4(const int4* address) {
    int4 v;
    asm volatile("ld.global.nc.L1::no_allocate" EP_PTX_FETCH ".v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

EP_DEVICE int4 ld_na_v4(const int4* address) {
    int4 v;
    asm volatile("ld.global.L1::no_allocate" EP_PTX_FETCH ".v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

#undef EP_PTX_FETCH

EP_DEVICE void st_na_v4(int4* address, int4 v) {
    asm volatile("st.global.L1::no_allocate.v4.s32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

// One access of 16 bytes, which no other access can split (PTX ISA: .b128 is a scalar type, .v2.b64 is two).
EP_DEVICE void st_relaxed_sys_u64x2(uint64_t* address, uint64_t first, uint64_t second) {
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }" ::"l"(address),
                 "l"(first), "l"(second)
                 : "memory");
}

EP_DEVICE void ld_relaxed_sys_u64x2(const uint64_t* address, uint64_t* first, uint64_t* second) {
    asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(*first), "=l"(*second)
                 : "l"(address)
                 : "memory");
}

// The clock costs as much to read as a flag, so a wait reads it once in this many polls. A short wait never reads it.
EP_DEVICE int polls_per_clock() { return 64; }
EP_DEVICE void only_looks(bool) {}  // tells the emulator, between two calls, that <ep/wait.cuh> only polls
EP_DEVICE uint64_t globaltimer_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

EP_DEVICE int64_t clock_cycles() { return clock64(); }

EP_DEVICE void sleep_ns(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

namespace detail {
EP_DEVICE uint64_t limit_clock_ns() { return globaltimer_ns(); }
constexpr bool kTraces = false;
EP_DEVICE void trace_value(const char*, double) {}
}  // namespace detail

// ---- where am I among the ranks: <ep/peer.cuh> gives these their public names --------------------------------------
namespace detail {

EP_DEVICE int rank() { return ep_device_state.rank; }
EP_DEVICE int num_ranks() { return ep_device_state.num_ranks; }
EP_DEVICE char* heap_base(int rank) { return reinterpret_cast<char*>(ep_device_state.heap_base[rank]); }
// The host leaves the address 0 where it could not map a rank's heap.
EP_DEVICE const HeapHeader& heap_header() { return *reinterpret_cast<const HeapHeader*>(heap_base(rank())); }
EP_DEVICE bool reachable(int rank) { return rank >= 0 && rank < num_ranks() && heap_base(rank) != nullptr; }
EP_DEVICE uint64_t heap_bytes() { return ep_device_state.heap_bytes; }
EP_DEVICE FaultRecord* fault_record() { return reinterpret_cast<FaultRecord*>(ep_device_state.fault_record); }
EP_DEVICE uint64_t timeout_ns() { return ep_device_state.timeout_ns; }
EP_DEVICE uint64_t wait_limit_ns(int, bool) { return timeout_ns() != 0 ? timeout_ns() : kDefaultTimeoutNs; }

// Copies the record to where the host sees it while kernels run; the word with the code comes last.
EP_DEVICE uint64_t call_site() { return 0; }  // only the emulator reports places
EP_DEVICE void show_fault(const FaultRecord* record) {
    const uint64_t* const from = reinterpret_cast<const uint64_t*>(record);
    uint64_t* const to = reinterpret_cast<uint64_t*>(ep_device_state.shown_fault);
#pragma unroll 1
    for (int i = sizeof(FaultRecord) / sizeof(uint64_t) - 1; i >= 0; --i) st_release_sys_u64(to + i, from[i]);
}

}  // namespace detail
}  // namespace ep

// The C interface between compiled kernels and the emulator's runtime (ep_lib/emulator/runtime).
//
// Kernels never call these by hand: builtins.h, warp.h and atomics.h give them their CUDA names, ep/cpu/primitives.cuh
// the names of ep_lib's device headers. Every call may switch to another CUDA thread (a fiber).
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

struct epemu_dim3 {
    unsigned x, y, z;
};

// These never change for a fiber: the compiler may fold repeated calls.
#define EPEMU_CONST __attribute__((const))

// ---- where am I among the ranks -------------------------------------------------------------------------------
EPEMU_CONST int epemu_rank();
EPEMU_CONST int epemu_num_ranks();
EPEMU_CONST char* epemu_heap_base(int rank);  // start of that rank's symmetric heap
EPEMU_CONST uint64_t epemu_heap_bytes();

// ---- block and warp -------------------------------------------------------------------------------------------
enum epemu_barrier_op { EPEMU_BARRIER, EPEMU_BARRIER_COUNT, EPEMU_BARRIER_AND, EPEMU_BARRIER_OR };
// `site` identifies the call in the source, even if the compiler merges or copies calls.
int epemu_syncthreads(int barrier_op, int predicate, unsigned site);
// One of a block's 16 named barriers, for `threads` of its threads; 0: all.
void epemu_named_barrier(unsigned id, unsigned threads);

enum epemu_warp_op {
    EPEMU_WARP_SYNC,   // __syncwarp
    EPEMU_SHFL,        // arg = source lane
    EPEMU_SHFL_UP,     // arg = delta
    EPEMU_SHFL_DOWN,   // arg = delta
    EPEMU_SHFL_XOR,    // arg = lane mask
    EPEMU_BALLOT,      // value = predicate; any and all are derived from it
    EPEMU_MATCH_ANY,   // value compared bit by bit; result: mask of lanes with an equal value
    EPEMU_MATCH_ALL,   // result: mask if all values are equal, else 0
    EPEMU_REDUCE_ADD,  // 32-bit unsigned wrap-around
    EPEMU_REDUCE_MIN_U32,
    EPEMU_REDUCE_MAX_U32,
    EPEMU_REDUCE_MIN_S32,
    EPEMU_REDUCE_MAX_S32,
    EPEMU_REDUCE_AND,
    EPEMU_REDUCE_OR,
    EPEMU_REDUCE_XOR,
};
// Blocks the calling lane until every lane of `mask` has called with the same op and mask. `width` as in __shfl_sync.
uint64_t epemu_warp(int warp_op, uint32_t mask, uint64_t value, int arg, int width);
uint32_t epemu_activemask();

// ---- memory: order and scope ----------------------------------------------------------------------------------
enum epemu_order { EPEMU_RELAXED, EPEMU_ACQUIRE, EPEMU_RELEASE, EPEMU_ACQ_REL, EPEMU_SEQ_CST, EPEMU_VOLATILE };
enum epemu_scope { EPEMU_SCOPE_BLOCK, EPEMU_SCOPE_DEVICE, EPEMU_SCOPE_SYSTEM };
uint64_t epemu_load(const volatile void* address, int size, int order, int scope);         // 1, 2, 4 or 8 bytes
void epemu_store(volatile void* address, uint64_t value, int size, int order, int scope);  // 1, 2, 4 or 8 bytes
// 16 bytes as one relaxed access of the system's scope: a thread that sees the second word sees the first one too.
void epemu_store_pair(uint64_t* address, uint64_t first, uint64_t second);
void epemu_load_pair(const uint64_t* address, uint64_t* first, uint64_t* second);  // both: on the caller's stack
void epemu_read_only(const void* address, int size);  // a load through the read-only path follows
void epemu_fence(int order, int scope);
void epemu_next_scope(int scope);  // of the std::atomic operation that follows

enum epemu_atomic_op {
    EPEMU_ATOMIC_ADD,  // wrap-around, any integer
    EPEMU_ATOMIC_SUB,
    EPEMU_ATOMIC_EXCH,
    EPEMU_ATOMIC_MIN_U,
    EPEMU_ATOMIC_MAX_U,
    EPEMU_ATOMIC_MIN_S,
    EPEMU_ATOMIC_MAX_S,
    EPEMU_ATOMIC_INC,  // CUDA's atomicInc: old >= value ? 0 : old + 1
    EPEMU_ATOMIC_DEC,  // CUDA's atomicDec: (old == 0 || old > value) ? value : old - 1
    EPEMU_ATOMIC_CAS,  // stores `value` if old == compare
    EPEMU_ATOMIC_AND,
    EPEMU_ATOMIC_OR,
    EPEMU_ATOMIC_XOR,
    EPEMU_ATOMIC_ADD_F32,  // value and result are the bits of the float
    EPEMU_ATOMIC_ADD_F64,
};
// Returns the old value, zero-extended. size: 1, 2, 4 or 8 (ADD_F32: 4, ADD_F64: 8).
uint64_t epemu_atomic(int atomic_op, void* address, uint64_t value, uint64_t compare, int size, int order, int scope);
// The old value of an atomic. If the program does not use it, compilers drop this call, and the atomic was no poll.
EPEMU_CONST uint64_t epemu_found(const void* address, uint64_t old);

// The same for 16 bytes: EPEMU_ATOMIC_EXCH or _CAS. `old` receives the old value.
void epemu_atomic16(int atomic_op, void* address, const void* value, const void* compare, void* old, int order,
                    int scope);

// ---- the heap of device code: malloc and free in a kernel, 8 MB a rank as CUDA's default ------------------------
void* epemu_malloc(size_t bytes);
void epemu_free(void* pointer);

// ---- network --------------------------------------------------------------------------------------------------
// Every rank has a NIC with queue pairs, numbered from 0, to every other rank. `remote` is this rank's own address of a
// symmetric object; the operation works on the peer's copy. Posting returns before anything has moved; it waits only
// while the queue pair is full. A NIC reads its source late and moves data in pieces.
bool epemu_reachable(int rank);  // by loads and stores: the rank itself, and P2P peers of its node
int epemu_num_queue_pairs();
bool epemu_keeps_order();  // rc: a queue pair delivers operations in posting order
enum epemu_signal_op { EPEMU_SIGNAL_SET, EPEMU_SIGNAL_ADD };
void epemu_net_put(int rank, int queue_pair, void* remote, const void* local, size_t bytes);
void epemu_net_get(int rank, int queue_pair, void* local, const void* remote, size_t bytes);
// The signal (64 bits) is seen after the data.
void epemu_net_put_signal(int rank, int queue_pair, void* remote, const void* local, size_t bytes, uint64_t* signal,
                          uint64_t value, int signal_op);
void epemu_net_atomic(int rank, int queue_pair, void* remote, uint64_t value, int size, int signal_op);
void epemu_net_fence(int rank, int queue_pair);  // -1: all; later operations stay behind earlier ones
void epemu_net_quiet(int rank, int queue_pair);  // -1: all; waits until all operations posted there are done

// A proxy posts operations for other threads. epemu_call_site() numbers the caller's line; operations that the proxy
// posts after epemu_on_behalf(number) are reported at that line, until the next call. 0: for itself.
uint64_t epemu_call_site();
void epemu_on_behalf(uint64_t place);

// ---- bulk copies by TMA: what <ep/tma.cuh> documents, called by lane 0; wait and store by all lanes
bool epemu_bulk_by_lanes();  // in virtual time lanes copy, as before sm_90: none of the rest is called
void epemu_bulk_init(uint64_t* barrier);
void epemu_bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier);
void epemu_bulk_arrive(uint64_t* barrier, uint32_t bytes);
void epemu_bulk_wait(uint64_t* barrier, uint32_t phase);
void epemu_bulk_store(void* global, const void* shared, uint32_t bytes);
void epemu_bulk_commit();
void epemu_bulk_wait_groups(int but, bool written);  // until all but the last `but` groups are read, or written too
void epemu_proxy_fence();

// ---- copies to shared memory by cp.async, which any lane posts and waits for: 4, 8 or 16 bytes; those behind
// `source_bytes` become 0. In virtual time, copies are immediate and these functions are not called.
void epemu_copy_async(void* shared, const void* global, uint32_t bytes, uint32_t source_bytes);
void epemu_copy_commit();
void epemu_copy_wait(uint32_t but);  // until all but the last `but` groups are complete

// ---- what kernels say about themselves ------------------------------------------------------------------------
void epemu_trace_value(const char* name, double value);  // ep::trace_value; does nothing without virtual time

// ---- time, text, ends -----------------------------------------------------------------------------------------
long long epemu_clock64();                // virtual cycles of this block; grows with every call
int epemu_polls_per_clock();              // the number of polls after which a wait reads the clock
void epemu_only_looks(bool from_now_on);  // the thread is in ep::look_until
uint64_t epemu_globaltimer();             // virtual nanoseconds, the same clock on all ranks
uint64_t epemu_limit_timer();             // the same, for a time limit that the wait is not expected to reach
void epemu_nanosleep(unsigned ns);
void epemu_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void epemu_trap(const char* why);
[[noreturn]] void epemu_assert_fail(const char* expression, const char* file, unsigned line, const char* function);

}  // extern "C"

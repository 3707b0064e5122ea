// Memory as kernels see it: every access is checked, synchronising loads, stores and atomics may switch fibers, and
// loops that poll are recognised.
//
// Kernels are compiled with -fsanitize=thread and call the __tsan_* functions below; libtsan is never linked.
#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "outages.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr uint8_t kRepeatsToPark = 2;  // times that a loop must see everything unchanged before it is parked

bool is_remote(uintptr_t address) {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(machine->heaps);
    return in_heaps < machine->heaps_bytes &&
           static_cast<int>(in_heaps >> machine->heap_shift) != current->block->launch->rank;
}

const char* access_name(bool write) { return write ? "writes" : "reads"; }

[[noreturn]] void bad_address(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    raise_fault(Fault::kBadAddress, pc, address,
                std::string(access_name(write)) + " " + std::to_string(size) + " bytes at " +
                    describe_address(*machine, address));
}

// `ranges` are sorted by begin; arrays of NumPy may overlap (views), so a few before the nearest are looked at too.
bool in_ranges(const std::vector<Range>& ranges, uintptr_t address, size_t size, bool write) {
    constexpr int kOverlaps = 16;
    auto it = std::upper_bound(ranges.begin(), ranges.end(), address,
                               [](uintptr_t a, const Range& r) { return a < r.begin; });
    for (int i = 0; i < kOverlaps && it != ranges.begin(); i++) {
        --it;
        if (address + size <= it->end && (it->writable || !write)) return true;
    }
    return false;
}

// Everything but the symmetric heaps and the block's shared memory, the two that check_access looks at first.
void check_elsewhere(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    if (address - stack < machine->settings.stack_bytes) return;
    Launch* launch = current->block->launch;
    if (in_ranges(launch->ranges, address, size, write)) return;
    if (in_ranges(machine->ranks[launch->rank].ranges, address, size, write)) return;
    for (const auto& segment : launch->image->segments)
        if (address >= segment.begin && address + size <= segment.end && (segment.writable || !write)) return;
    bad_address(address, size, write, pc);
}

inline void access(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    if (!current) return;  // initialisers of a kernel library, while it is loaded
    check_access(address, size, write, pc);
    if (__builtin_expect(checker != nullptr, 0)) checker->access(current, address, size, write ? kWrites : 0, pc);
    if (write && current->polls && current->polls->num_loads) note_store(address, static_cast<int>(size));
    if (--quantum < 0) {
        current->pc = pc;  // where it is seen, should the time be over
        preempt();
    }
}

// True if a fiber polled all these locations before, saw the same, and stored nothing that changed anything since.
bool saw_it_before(PollSet& p, uintptr_t address, uint64_t value, int size) {
    for (int i = 0; i < p.num_stores; i++)
        if (read_raw(p.stores[i].address, p.stores[i].size) != p.stores[i].before) {
            p = PollSet{};
            break;
        }
    p.num_stores = 0;
    for (int i = 0; i < p.num_loads; i++) {
        if (p.loads[i].address != address) continue;
        if (p.loads[i].value == value) return ++p.loads[i].repeats >= kRepeatsToPark;
        p = PollSet{};
        break;
    }
    if (p.num_loads == PollSet::kMax) p = PollSet{};
    p.loads[p.num_loads++] = {address, value, static_cast<uint8_t>(size), 0};
    return false;
}

// A load whose value may end a loop. Parks the fiber where the loop cannot end before someone else stores.
void poll(uintptr_t address, int size, const char* what, uintptr_t pc) {
    if (!current->polls) current->polls = std::make_unique<PollSet>();
    current->pc = pc;
    if (!saw_it_before(*current->polls, address, read_raw(address, size), size)) {
        maybe_preempt();
        return;
    }
    park(current);
    block_current(State::kPolling, what, pc);
    for (auto& load : current->polls->loads) load.repeats = 0;
}

void check_aligned(uintptr_t address, int size, bool write, uintptr_t pc) {
    if (address % size == 0) return;
    raise_fault(Fault::kBadAddress, pc, address,
                std::string(access_name(write)) + " " + std::to_string(size) +
                    " bytes as one operation at an address that is not a multiple of " + std::to_string(size) + ": " +
                    describe_address(*machine, address));
}

void write_raw(uintptr_t address, uint64_t value, int size) { memcpy(reinterpret_cast<void*>(address), &value, size); }

// Stores that another rank may wait for are what a rank that stops no longer does.
inline void before_signal(uintptr_t address, uintptr_t pc) {
    if (__builtin_expect(machine->outages != nullptr, 0) && is_remote(address)) about_to_send(pc);
}

uint64_t synchronising_load(uintptr_t address, int size, int order, int scope, const char* what, uintptr_t pc) {
    if (!current) return read_raw(address, size);
    check_aligned(address, size, false, pc);
    check_access(address, size, false, pc);
    poll(address, size, what, pc);
    if (checker) checker->load(current, address, size, order, scope, pc);
    return read_raw(address, size);
}

void synchronising_store(uintptr_t address, uint64_t value, int size, int order, int scope, uintptr_t pc) {
    if (!current) return write_raw(address, value, size);
    check_aligned(address, size, true, pc);
    check_access(address, size, true, pc);
    before_signal(address, pc);
    current->pc = pc;
    maybe_preempt();
    if (checker) checker->store(current, address, size, order, scope, pc);
    const uint64_t before = read_raw(address, size);
    write_raw(address, value, size);
    if (read_raw(address, size) == before) return;
    forget_polls();
    machine->progress++;
    wake(address);
    maybe_preempt();
}

template <class F>
uint64_t bits_of(F value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class F>
F from_bits(uint64_t bits) {
    F value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int64_t sign_extend(uint64_t value, int size) {
    const int shift = 64 - 8 * size;
    return static_cast<int64_t>(value << shift) >> shift;
}

uint64_t apply(int op, uint64_t old, uint64_t value, uint64_t compare, int size) {
    switch (op) {
        case EPEMU_ATOMIC_ADD: return old + value;
        case EPEMU_ATOMIC_SUB: return old - value;
        case EPEMU_ATOMIC_EXCH: return value;
        case EPEMU_ATOMIC_MIN_U: return std::min(old, value);
        case EPEMU_ATOMIC_MAX_U: return std::max(old, value);
        case EPEMU_ATOMIC_MIN_S: return sign_extend(value, size) < sign_extend(old, size) ? value : old;
        case EPEMU_ATOMIC_MAX_S: return sign_extend(value, size) > sign_extend(old, size) ? value : old;
        case EPEMU_ATOMIC_INC: return old >= value ? 0 : old + 1;
        case EPEMU_ATOMIC_DEC: return old == 0 || old > value ? value : old - 1;
        case EPEMU_ATOMIC_CAS: return old == compare ? value : old;
        case EPEMU_ATOMIC_AND: return old & value;
        case EPEMU_ATOMIC_OR: return old | value;
        case EPEMU_ATOMIC_XOR: return old ^ value;
        case EPEMU_ATOMIC_ADD_F32: return bits_of(from_bits<float>(old) + from_bits<float>(value));
        case EPEMU_ATOMIC_ADD_F64: return bits_of(from_bits<double>(old) + from_bits<double>(value));
    }
    return old;
}

// The order of a std::atomic's operation, numbered as in C++.
int order_of(int memory_order) {
    constexpr int kOrders[] = {EPEMU_RELAXED, EPEMU_ACQUIRE, EPEMU_ACQUIRE,
                               EPEMU_RELEASE, EPEMU_ACQ_REL, EPEMU_SEQ_CST};
    return kOrders[std::min(memory_order & 7, 5)];
}

uint64_t truncate(uint64_t value, int size) { return size == 8 ? value : value & ((1ull << 8 * size) - 1); }

uint64_t atomic(int op, uintptr_t address, uint64_t value, uint64_t compare, int size, int order, int scope,
                uintptr_t pc) {
    check_aligned(address, size, true, pc);
    check_access(address, size, true, pc);
    before_signal(address, pc);
    current->pc = pc;
    maybe_preempt();
    uint64_t old = read_raw(address, size);
    value = truncate(value, size);
    compare = truncate(compare, size);
    uint64_t now = truncate(apply(op, old, value, compare, size), size);
    if (now == old) {
        // An atomic that changes nothing (a failed compare-and-swap, an add of 0) is a way to poll.
        poll(address, size, "a polling loop of atomics", pc);
        old = read_raw(address, size);
        now = truncate(apply(op, old, value, compare, size), size);
        if (now == old) {
            if (checker && op == EPEMU_ATOMIC_CAS && old != compare) {
                checker->load(current, address, size, order, scope, pc);
            } else if (checker) {
                checker->update(current, address, size, order, scope, pc);
            }
            return old;
        }
    }
    if (checker) checker->update(current, address, size, order, scope, pc);
    write_raw(address, now, size);
    forget_polls();
    machine->progress++;
    wake(address);
    maybe_preempt();
    return old;
}

}  // namespace

void forget_polls() {
    if (current->polls) {
        current->polls->num_loads = current->polls->num_stores = 0;
        current->polls->used_clock = false;
    }
}

uint64_t read_raw(uintptr_t address, int size) {
    uint64_t value = 0;
    memcpy(&value, reinterpret_cast<void*>(address), size);
    return value;
}

void note_store(uintptr_t address, int size) {
    PollSet& p = *current->polls;
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    if (address - stack < machine->settings.stack_bytes) return;  // a local: nobody else sees it
    if (size > 8 || p.num_stores == PollSet::kMax) {
        forget_polls();
        return;
    }
    p.stores[p.num_stores++] = {address, read_raw(address, size), static_cast<uint8_t>(size)};
}

void check_access(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    Block* block = current->block;
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(block->shared);
    if (in_shared < block->shared_bytes && in_shared + size <= block->shared_bytes) return;
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(machine->heaps);
    if (in_heaps < machine->heaps_bytes) {
        if ((in_heaps & (machine->heap_stride - 1)) + size > machine->heap_used) bad_address(address, size, write, pc);
        const int owner = static_cast<int>(in_heaps >> machine->heap_shift), me = block->launch->rank;
        if (owner != me && !reachable(*machine, me, owner))
            raise_fault(Fault::kBadAddress, pc, address,
                        std::string(access_name(write)) + " memory of rank " + std::to_string(owner) +
                            ", which loads and stores do not reach on this fabric: it takes the network");
        return;
    }
    check_elsewhere(address, size, write, pc);
}

}  // namespace epemu

using namespace epemu;

extern "C" {

uint64_t epemu_load(const volatile void* p, int size, int order, int scope) {
    return synchronising_load(reinterpret_cast<uintptr_t>(p), size, order, scope,
                              order == EPEMU_ACQUIRE ? "a polling loop of acquire loads" : "a polling loop", EPEMU_PC);
}
void epemu_store(volatile void* p, uint64_t value, int size, int order, int scope) {
    synchronising_store(reinterpret_cast<uintptr_t>(p), value, size, order, scope, EPEMU_PC);
}
uint64_t epemu_atomic(int op, void* p, uint64_t value, uint64_t compare, int size, int order, int scope) {
    return atomic(op, reinterpret_cast<uintptr_t>(p), value, compare, size, order, scope, EPEMU_PC);
}
void epemu_fence(int order, int scope) {
    if (checker) checker->fence(current, order, scope);
    maybe_preempt();
}

// ---- what -fsanitize=thread calls ------------------------------------------------------------------------------
void __tsan_init() {}
void __tsan_func_entry(void*) {
    if (!current) return;
    constexpr ptrdiff_t kReserve = 1024;  // for what this function calls without telling: the runtime itself
    if (static_cast<char*>(__builtin_frame_address(0)) - current->stack < kReserve)
        raise_fault(Fault::kStack, EPEMU_PC, 0, "");
}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define PLAIN(n)                                                                                             \
    void __tsan_read##n(void* p) { access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }             \
    void __tsan_write##n(void* p) { access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }             \
    void __tsan_unaligned_read##n(void* p) { access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }   \
    void __tsan_unaligned_write##n(void* p) { access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }   \
    void __tsan_read_write##n(void* p) { access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }        \
    void __tsan_read##n##_pc(void* p, void*) { access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); } \
    void __tsan_write##n##_pc(void* p, void*) { access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

static void volatile_read(uintptr_t address, int size, uintptr_t pc) {
    if (!current) return;
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    if (address - stack < machine->settings.stack_bytes) return;
    check_access(address, size, false, pc);
    if (size <= 8) poll(address, size, "a polling loop of volatile loads", pc);
    if (checker) checker->load(current, address, size, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM, pc);
}
// The store itself follows in the kernel; polling fibers are woken now and run later, when it has happened.
static void volatile_write(uintptr_t address, int size, uintptr_t pc) {
    if (!current) return;
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    if (address - stack < machine->settings.stack_bytes) return;
    check_access(address, size, true, pc);
    before_signal(address, pc);
    maybe_preempt();
    if (checker) checker->store(current, address, size, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM, pc);
    forget_polls();
    machine->progress++;
    wake(address);
}
#define VOLATILE(n)                                                                                                 \
    void __tsan_volatile_read##n(void* p) { volatile_read(reinterpret_cast<uintptr_t>(p), n, EPEMU_PC); }           \
    void __tsan_volatile_write##n(void* p) { volatile_write(reinterpret_cast<uintptr_t>(p), n, EPEMU_PC); }         \
    void __tsan_unaligned_volatile_read##n(void* p) { volatile_read(reinterpret_cast<uintptr_t>(p), n, EPEMU_PC); } \
    void __tsan_unaligned_volatile_write##n(void* p) { volatile_write(reinterpret_cast<uintptr_t>(p), n, EPEMU_PC); }
VOLATILE(1)
VOLATILE(2)
VOLATILE(4)
VOLATILE(8)
VOLATILE(16)

void __tsan_read_range(void* p, size_t n) { access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }
void __tsan_write_range(void* p, size_t n) { access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }
void* __tsan_memcpy(void* d, const void* s, size_t n) {
    if (!n) return d;
    access(reinterpret_cast<uintptr_t>(s), n, false, EPEMU_PC);
    access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n) {
    if (!n) return d;
    access(reinterpret_cast<uintptr_t>(s), n, false, EPEMU_PC);
    access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memmove(d, s, n);
}
void* __tsan_memset(void* d, int c, size_t n) {
    if (!n) return d;
    access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memset(d, c, n);
}

// std::atomic, cuda::atomic_ref and the __atomic builtins.
#define RMW(bits, name, op)                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void* p, uint##bits##_t v, int order) {                       \
        return static_cast<uint##bits##_t>(atomic(op, reinterpret_cast<uintptr_t>(p), v, 0, bits / 8, order_of(order), \
                                                  EPEMU_SCOPE_SYSTEM, EPEMU_PC));                                      \
    }
#define ATOMIC(bits)                                                                                                   \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile void* p, int order) {                                     \
        return static_cast<uint##bits##_t>(synchronising_load(reinterpret_cast<uintptr_t>(p), bits / 8,                \
                                                              order_of(order), EPEMU_SCOPE_SYSTEM,                     \
                                                              "a polling loop of atomic loads", EPEMU_PC));            \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile void* p, uint##bits##_t v, int order) {                                  \
        synchronising_store(reinterpret_cast<uintptr_t>(p), v, bits / 8, order_of(order), EPEMU_SCOPE_SYSTEM,          \
                            EPEMU_PC);                                                                                 \
    }                                                                                                                  \
    RMW(bits, exchange, EPEMU_ATOMIC_EXCH)                                                                             \
    RMW(bits, fetch_add, EPEMU_ATOMIC_ADD)                                                                             \
    RMW(bits, fetch_sub, EPEMU_ATOMIC_SUB)                                                                             \
    RMW(bits, fetch_and, EPEMU_ATOMIC_AND)                                                                             \
    RMW(bits, fetch_or, EPEMU_ATOMIC_OR)                                                                               \
    RMW(bits, fetch_xor, EPEMU_ATOMIC_XOR)                                                                             \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile void* p, uint##bits##_t c, uint##bits##_t v,    \
                                                              int order, int) {                                        \
        return static_cast<uint##bits##_t>(atomic(EPEMU_ATOMIC_CAS, reinterpret_cast<uintptr_t>(p), v, c, bits / 8,    \
                                                  order_of(order), EPEMU_SCOPE_SYSTEM, EPEMU_PC));                     \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile void* p, uint##bits##_t* c, uint##bits##_t v,           \
                                                      int order, int) {                                                \
        const auto old = static_cast<uint##bits##_t>(atomic(EPEMU_ATOMIC_CAS, reinterpret_cast<uintptr_t>(p), v, *c,   \
                                                            bits / 8, order_of(order), EPEMU_SCOPE_SYSTEM, EPEMU_PC)); \
        const bool same = old == *c;                                                                                   \
        *c = old;                                                                                                      \
        return same;                                                                                                   \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile void* p, uint##bits##_t* c, uint##bits##_t v,             \
                                                    int success, int failure) {                                        \
        return __tsan_atomic##bits##_compare_exchange_strong(p, c, v, success, failure);                               \
    }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
void __tsan_atomic_thread_fence(int order) {
    if (!current) return;
    if (checker) checker->fence(current, order_of(order), EPEMU_SCOPE_SYSTEM);
    maybe_preempt();
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

// Memory as kernels see it: every access is checked, synchronising loads, stores and atomics may switch fibers, and
// polling loops are recognised. sanitizer_hooks.cpp has the functions that compilers insert calls of.
#include <string.h>

#include <algorithm>
#include <cmath>

#include "checker.hpp"
#include "machine.hpp"
#include "memory.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

const char* access_name(bool write) { return write ? "writes" : "reads"; }

[[noreturn]] void bad_address(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    raise_fault(Fault::kBadAddress, pc, address,
                std::string(access_name(write)) + " " + describe_range(*machine, address, size));
}

// `ranges` are sorted by begin; arrays of NumPy may overlap (views), so a few before the nearest are checked too.
bool in_ranges(const std::vector<Range>& ranges, uintptr_t address, size_t size, bool write, Range* found) {
    constexpr int kOverlaps = 16;
    auto it = std::upper_bound(ranges.begin(), ranges.end(), address,
                               [](uintptr_t a, const Range& r) { return a < r.begin; });
    for (int i = 0; i < kOverlaps && it != ranges.begin(); i++) {
        --it;
        if (address + size <= it->end && (it->writable || !write)) {
            *found = *it;
            return true;
        }
    }
    return false;
}

// Checks memory outside of the symmetric heaps and the block's shared memory, which come first.
void check_elsewhere(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    Launch* launch = current->block->launch;
    Range& recent = launch->recent[write];
    if (address >= recent.begin && address + size <= recent.end) return;
    if (is_on_stack(current, address)) {
        if (write) machine->last_local_writer = current, machine->last_local_pc = pc;
        return;
    }
    // clang++ copies a large argument by memcpy.
    const auto args = reinterpret_cast<uintptr_t>(launch->arg_bytes.data());
    if (!write && address - args < launch->arg_bytes.size()) return;
    if (in_ranges(launch->ranges, address, size, write, &recent)) return;
    if (in_ranges(machine->ranks[launch->rank].ranges, address, size, write, &recent)) return;
    for (const Range& own : launch->image->memory)
        if (address >= own.begin && address + size <= own.end && (own.writable || !write)) return;
    if (!write && is_an_index(address, size)) return;
    bad_address(address, size, write, pc);
}

// True if a fiber polled these locations before, saw the same values, and has changed nothing since.
bool saw_it_before(PollSet& p, uintptr_t address, uint64_t value, int size) {
    for (int i = 0; i < p.num_stores; i++)
        if (read_raw(p.stores[i].address, p.stores[i].size) != p.stores[i].before) {
            p = PollSet{};
            break;
        }
    p.num_stores = 0;
    for (int i = 0; i < p.num_loads; i++) {
        if (p.loads[i].address != address) continue;
        if (checker) checker->polled(address, current->pc);
        const bool is_same = p.loads[i].value == value;
        if (machine->schedule->looks(p, i, false, is_same)) return true;
        if (is_same) return false;
        p = PollSet{};
        break;
    }
    if (p.num_loads == PollSet::kMax) p = PollSet{};
    p.loads[p.num_loads++] = {address, value, 0, 0, static_cast<uint8_t>(size), 0};
    machine->schedule->looks(p, p.num_loads - 1, true, true);
    return false;
}

void check_aligned(uintptr_t address, int size, bool write, uintptr_t pc) {
    if (address % size == 0) return;
    raise_fault(Fault::kBadAddress, pc, address,
                std::string(access_name(write)) + " " + std::to_string(size) +
                    " bytes as one operation at an address that is not a multiple of " + std::to_string(size) + ": " +
                    describe_address(*machine, address));
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

// Flushes a denormal, as an addition of floats in global memory does.
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
uint64_t added_in_global(uint64_t old, uint64_t value) {
    return bits_of(flushed(flushed(from_bits<float>(old)) + flushed(from_bits<float>(value))));
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

// Sets the kind of the running thread's accesses within a scope.
struct Doing {
    ThreadCheck* const thread = checker && current ? current->check : nullptr;
    explicit Doing(AccessDetails details) {
        if (thread) thread->details = details;
    }
    ~Doing() {
        if (thread) thread->details = 0;
    }
};

uint64_t truncate(uint64_t value, int size) { return size == 8 ? value : value & ((1ull << 8 * size) - 1); }

}  // namespace

// A load whose value may end a loop. Parks the fiber if the loop cannot end before another thread stores.
void poll(uintptr_t address, int size, const char* what, uintptr_t pc) {
    if (!current->polls) current->polls = std::make_unique<PollSet>();
    current->pc = pc;
    if (timed) timed->synchronise();
    if (!saw_it_before(*current->polls, address, read_raw(address, size), size)) {
        maybe_preempt();
        if (timed) timed->looked(address);
        return;
    }
    const double begin = timed ? timed->now_ns() : 0;
    if (machine->time_stands()) {
        current->polls->state = state_of_kernel();
        current->polls->caller = caller_in_kernel();
    }
    park(current);
    block_current(State::kPolling, what, pc);
    if (timed) timed->looked(address);
    if (timed) timed->waited(begin, what, pc);
    for (auto& load : current->polls->loads) load.repeats = 0;
}

uint64_t synchronising_load(uintptr_t address, int size, int order, int scope, const char* what, uintptr_t pc) {
    if (!current) return read_raw(address, size);
    check_aligned(address, size, false, pc);
    check_access(address, size, false, pc);
    poll(address, size, what, pc);
    uint64_t older;
    if (checker && checker->load(current, address, &older, size, order, scope, pc)) {
        if (machine->schedule->is_random()) forget_polls();  // the next look may see more
        return older;
    }
    return read_raw(address, size);
}

void synchronising_store(uintptr_t address, uint64_t value, int size, int order, int scope, uintptr_t pc) {
    if (!current) return write_raw(address, value, size);
    check_aligned(address, size, true, pc);
    check_access(address, size, true, pc);
    before_signal(address, pc);
    current->pc = pc;
    maybe_preempt();
    if (checker && !checker->store(current, address, &value, size, order, scope, pc)) return forget_polls();
    if (order == EPEMU_SEQ_CST && machine->has_other_processes()) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (timed && timed->remote(address) > 0) {
        timed->store_later(address, value, size, timed->remote(address));
        return forget_polls();
    }
    const uint64_t before = read_raw(address, size);
    write_raw(address, value, size);
    if (read_raw(address, size) == before) return;
    forget_polls();
    machine->progress++;
    wake(address, size);
    maybe_preempt();
}

uint64_t atomic(int op, uintptr_t address, uint64_t value, uint64_t compare, int size, int order, int scope,
                uintptr_t pc) {
    check_aligned(address, size, true, pc);
    check_access(address, size, true, pc);
    before_signal(address, pc);
    current->pc = pc;
    maybe_preempt();
    if (timed) timed->atomic(address);
    if (checker && op != EPEMU_ATOMIC_EXCH) checker->needs_value(current, address, size, scope, pc);
    value = truncate(value, size);
    compare = truncate(compare, size);
    Behind behind;
    const bool flushes = op == EPEMU_ATOMIC_ADD_F32 && !is_shared(address, size);
    const auto updated = [&](uint64_t old) {
        return flushes ? added_in_global(old, value) : truncate(apply(op, old, value, compare, size), size);
    };
    if (checker && checker->weak && checker->may_update_behind(current, address, size, updated, &behind)) {
        checker->update(current, address, updated(behind.value), size, order, scope, pc, &behind);
        forget_polls();
        return behind.value;
    }
    uint64_t old = read_raw(address, size);
    uint64_t now = updated(old);
    if (now == old) {
        // An atomic that changes nothing (a failed compare-and-swap, an add of 0) is a way to poll.
        poll(address, size, "a polling loop of atomics", pc);
        old = read_raw(address, size);
        now = updated(old);
        if (now == old) {
            if (checker && op == EPEMU_ATOMIC_CAS && old != compare) {
                const Doing doing(kFailed);
                checker->load(current, address, nullptr, size, order, scope, pc);
            } else if (checker) {
                checker->update(current, address, now, size, order, scope, pc);
            }
            return old;
        }
    }
    if (checker) checker->update(current, address, now, size, order, scope, pc);
    if (checker && (op == EPEMU_ATOMIC_CAS || op == EPEMU_ATOMIC_EXCH)) checker->witness.swapped(*current, address);
    while (!replace_raw(address, old, now, size)) {  // another process changed it
        old = read_raw(address, size);
        now = updated(old);
    }
    forget_polls();
    machine->progress++;
    wake(address, size);
    maybe_preempt();
    return old;
}

// A 16-byte atomic while other processes may do one. False if a compare-and-swap finds another value; `old`: the value
// found.
bool swap16(int op, void* p, const void* value, const void* compare, void* old) {
#if defined(__x86_64__)
    struct Pair {
        uint64_t low, high;
    } before, after;
    memcpy(&before, op == EPEMU_ATOMIC_CAS ? compare : old, sizeof before);
    memcpy(&after, value, sizeof after);
    for (;;) {
        bool done;  // by hand: clang 14 calls a function for it, which no library has, unless all is built with -mcx16
        asm volatile("lock cmpxchg16b %1"
                     : "=@ccz"(done), "+m"(*static_cast<Pair*>(p)), "+a"(before.low), "+d"(before.high)
                     : "b"(after.low), "c"(after.high)
                     : "memory");
        memcpy(old, &before, sizeof before);  // the value found
        if (done) return true;
        if (op == EPEMU_ATOMIC_CAS) return false;
    }
#else
    raise_fault(Fault::kTrap, current->pc, 0,
                "a 16-byte atomic, which ranks in processes of their own have on x86-64 only: use ep_lib.spawn");
#endif
}

bool is_remote(uintptr_t address) {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(machine->heaps);
    return in_heaps < machine->heaps_bytes &&
           static_cast<int>(in_heaps >> machine->heap_shift) != current->block->launch->rank;
}

void forget_polls() {
    if (current->polls) {
        current->polls->num_loads = current->polls->num_stores = 0;
        current->polls->used_clock = false;
    }
}

// A single machine access if the size allows: other processes may access the memory concurrently.
uint64_t read_raw(uintptr_t address, int size) {
    switch (address & (size - 1) ? 0 : size) {
        case 1: return __atomic_load_n(reinterpret_cast<uint8_t*>(address), __ATOMIC_ACQUIRE);
        case 2: return __atomic_load_n(reinterpret_cast<uint16_t*>(address), __ATOMIC_ACQUIRE);
        case 4: return __atomic_load_n(reinterpret_cast<uint32_t*>(address), __ATOMIC_ACQUIRE);
        case 8: return __atomic_load_n(reinterpret_cast<uint64_t*>(address), __ATOMIC_ACQUIRE);
    }
    uint64_t value = 0;
    memcpy(&value, reinterpret_cast<void*>(address), size);
    return value;
}

void write_raw(uintptr_t address, uint64_t value, int size) {
    switch (address & (size - 1) ? 0 : size) {
        case 1: return __atomic_store_n(reinterpret_cast<uint8_t*>(address), value, __ATOMIC_RELEASE);
        case 2: return __atomic_store_n(reinterpret_cast<uint16_t*>(address), value, __ATOMIC_RELEASE);
        case 4: return __atomic_store_n(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_RELEASE);
        case 8: return __atomic_store_n(reinterpret_cast<uint64_t*>(address), value, __ATOMIC_RELEASE);
    }
    memcpy(reinterpret_cast<void*>(address), &value, size);
}

template <class Word>
bool replace_word(uintptr_t address, uint64_t old, uint64_t value) {
    auto expected = static_cast<Word>(old);
    return __atomic_compare_exchange_n(reinterpret_cast<Word*>(address), &expected, static_cast<Word>(value), false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool replace_raw(uintptr_t address, uint64_t old, uint64_t value, int size) {
    switch (machine->has_other_processes() ? size : 0) {
        case 1: return replace_word<uint8_t>(address, old, value);
        case 2: return replace_word<uint16_t>(address, old, value);
        case 4: return replace_word<uint32_t>(address, old, value);
        case 8: return replace_word<uint64_t>(address, old, value);
    }
    write_raw(address, value, size);
    return true;
}

void note_store(uintptr_t address, int size) {
    PollSet& p = *current->polls;
    if (size > 8 || p.num_stores == PollSet::kMax) {
        forget_polls();
        return;
    }
    p.stores[p.num_stores++] = {address, read_raw(address, size), static_cast<uint8_t>(size)};
}

// Symmetric arrays have the same offsets on every rank, so the launching rank's allocations are valid for all heaps.
bool in_an_array(Launch& launch, size_t offset, size_t size, bool write) {
    Range& recent = launch.recent_symmetric[write];
    if (offset >= recent.begin && offset + size <= recent.end) return true;
    const std::vector<Range>& arrays = *launch.arrays;
    auto it =
        std::upper_bound(arrays.begin(), arrays.end(), offset, [](uintptr_t o, const Range& r) { return o < r.begin; });
    if (it == arrays.begin() || offset + size > std::prev(it)->end) return false;
    recent = *std::prev(it);
    return true;
}

void check_access_outside(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    Block* block = current->block;
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(machine->heaps);
    if (in_heaps < machine->heaps_bytes) {
        if (!in_an_array(*block->launch, in_heaps & (machine->heap_stride - 1), size, write))
            bad_address(address, size, write, pc);
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
void epemu_store_pair(uint64_t* p, uint64_t first, uint64_t second) {
    const auto address = reinterpret_cast<uintptr_t>(p), pc = EPEMU_PC;
    const bool weak = current && checker && checker->weak;
    if (weak) checker->weak->of(current->check->id, current->check->block).pair = address;
    const Doing doing(kOfPair);
    synchronising_store(address, first, 8, EPEMU_RELAXED, EPEMU_SCOPE_SYSTEM, pc);
    synchronising_store(address + 8, second, 8, EPEMU_RELAXED, EPEMU_SCOPE_SYSTEM, pc);
    if (weak) checker->weak->of(current->check->id, current->check->block).pair = 0;
}
void epemu_load_pair(const uint64_t* p, uint64_t* first, uint64_t* second) {
    const auto address = reinterpret_cast<uintptr_t>(p), pc = EPEMU_PC;
    const Doing doing(kOfPair);
    *second = synchronising_load(address + 8, 8, EPEMU_RELAXED, EPEMU_SCOPE_SYSTEM, "a polling loop", pc);
    *first = synchronising_load(address, 8, EPEMU_RELAXED, EPEMU_SCOPE_SYSTEM, "a polling loop", pc);
}
uint64_t epemu_found(const void* address, uint64_t old) {
    if (checker) checker->found(current, reinterpret_cast<uintptr_t>(address));
    return old;
}

uint64_t epemu_atomic(int op, void* p, uint64_t value, uint64_t compare, int size, int order, int scope) {
    if (checker && op == EPEMU_ATOMIC_EXCH) {
        const auto address = reinterpret_cast<uintptr_t>(p), pc = EPEMU_PC;
        check_access(address, static_cast<size_t>(size), true, pc);
        checker->swaps(current, address, static_cast<size_t>(size), pc);
    }
    const uint64_t old = atomic(op, reinterpret_cast<uintptr_t>(p), value, compare, size, order, scope, EPEMU_PC);
    if (checker) checker->witness.uses(*current, reinterpret_cast<uintptr_t>(p), false);
    return old;
}
void epemu_atomic16(int op, void* p, const void* value, const void* compare, void* old, int order, int scope) {
    constexpr int kBytes = 16;
    const auto address = reinterpret_cast<uintptr_t>(p), pc = EPEMU_PC;
    check_aligned(address, kBytes, true, pc);
    check_access(address, kBytes, true, pc);
    before_signal(address, pc);
    current->pc = pc;
    maybe_preempt();
    if (timed) timed->atomic(address);
    const bool swaps = op == EPEMU_ATOMIC_EXCH || !memcmp(p, compare, kBytes);
    if (!swaps || !memcmp(p, value, kBytes)) {  // it changes nothing, so it is a poll
        poll(address, kBytes / 2, "a polling loop of atomics", pc);
        poll(address + kBytes / 2, kBytes / 2, "a polling loop of atomics", pc);
    }
    memcpy(old, p, kBytes);
    if (op == EPEMU_ATOMIC_CAS && memcmp(old, compare, kBytes)) {
        const Doing doing(kFailed);
        if (checker) checker->load(current, address, nullptr, kBytes, order, scope, pc);
        return;
    }
    if (checker) checker->update(current, address, 0, kBytes, order, scope, pc);
    if (!memcmp(old, value, kBytes)) return;
    if (checker) checker->witness.swapped(*current, address);
    if (machine->has_other_processes()) {
        if (!swap16(op, p, value, compare, old)) return;
    } else {
        memcpy(p, value, kBytes);
    }
    forget_polls();
    machine->progress++;
    wake(address, kBytes);
    maybe_preempt();
}
void epemu_read_only(const void* p, int size) {
    if (checker && current) checker->read_only(current, reinterpret_cast<uintptr_t>(p), size, EPEMU_PC);
}
void epemu_fence(int order, int scope) {
    current->pc = EPEMU_PC;
    if (checker) checker->fence(current, order, scope);
    if (machine->has_other_processes()) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    maybe_preempt();
}

}  // extern "C"

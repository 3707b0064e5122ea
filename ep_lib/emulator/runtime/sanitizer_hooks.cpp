// The functions that compilers insert calls of: kernels are compiled with -fsanitize=thread and -fsanitize=alignment,
// and the emulator defines these functions itself; libtsan and libubsan are never linked.
#include <stdio.h>
#include <string.h>

#include <utility>

#include "checker.hpp"
#include "memory.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

using namespace epemu;

namespace {

// The order of a std::atomic's operation, numbered as in C++.
int order_of(int memory_order) {
    constexpr int kOrders[] = {EPEMU_RELAXED, EPEMU_ACQUIRE, EPEMU_ACQUIRE,
                               EPEMU_RELEASE, EPEMU_ACQ_REL, EPEMU_SEQ_CST};
    return kOrders[std::min(memory_order & 7, 5)];
}

// The scope of the next atomic or fence, if libcu++ has announced it (see include/cuda/std/__atomic/scopes.h and
// include/cuda/__atomic/atomic.h).
int next_scope = EPEMU_SCOPE_SYSTEM;
int take_scope() { return std::exchange(next_scope, static_cast<int>(EPEMU_SCOPE_SYSTEM)); }

// The arguments of -fsanitize=alignment and similar checks.
struct Type {
    uint16_t kind, info;
    char name[1];
};
struct Mismatch {
    const char* file;
    uint32_t line, column;
    const Type* type;
    uint8_t log_alignment, kind;
};
struct OutOfBounds {
    const char* file;
    uint32_t line, column;
    const Type *array, *index;
};
struct Operation {  // the types of a shift's operands, or of a cast's source and target
    const char* file;
    uint32_t line, column;
    const Type *left, *right;
};
constexpr int kWordBits = 64;  // larger operands come by address
bool is_integer(const Type* type) { return type->kind == 0; }
int bits_of(const Type* type) { return is_integer(type) ? 1 << (type->info >> 1) : type->info; }

std::string text_of(const Type* type, uint64_t value) {
    const int bits = bits_of(type), unused = kWordBits - bits;
    if (unused < 0) return "a value";
    char text[32];
    if (is_integer(type)) {
        if (type->info & 1) return std::to_string(static_cast<int64_t>(value << unused) >> unused);
        return std::to_string(value << unused >> unused);
    }
    double number;
    float single;
    memcpy(&number, &value, sizeof number);
    memcpy(&single, &value, sizeof single);
    if (bits < 32) return "a value";
    snprintf(text, sizeof text, "%g", bits == 32 ? single : number);
    return text;
}

// Reports a line whose value is defined on a GPU but not in C++. Under the checker it is a finding.
template <class F>
void other_value(const char* kind, uintptr_t pc, F text) {
    if (!current) return;
    with_room([&] {
        std::string* const first =
            checker ? checker->other_value(current, pc, kind) : machine->other_value(current, pc, kind);
        if (first) *first = text();
    });
}

}  // namespace

namespace epemu {

bool is_volatile_pending = false;

namespace {
struct {
    uintptr_t address;
    uint64_t value;  // of a load: the value to restore in memory
    int size;
    bool is_store;
} pending;
}  // namespace

void finish_last_volatile() {
    is_volatile_pending = false;
    uint64_t value = pending.value;
    if (pending.is_store && current && checker)
        value = checker->stored_now(current, pending.address, read_raw(pending.address, pending.size), pending.size);
    write_raw(pending.address, value, pending.size);
}

}  // namespace epemu

extern "C" {

void epemu_next_scope(int scope) { next_scope = scope; }

// ---- -fsanitize=alignment and object-size: an address that does not fit the type, or lies outside of the variable ------
void __ubsan_handle_type_mismatch_v1(const Mismatch* what, uintptr_t address) {
    if (!current || is_on_stack(current, address)) return;
    const char* verbs[] = {"reads", "writes"};
    const std::string where = what->log_alignment == 0 ? "outside of the variable that it indexes: "
                                                       : "at an address that is not a multiple of " +
                                                             std::to_string(1 << what->log_alignment) + ": ";
    raise_fault(Fault::kBadAddress, EPEMU_PC, address,
                std::string(what->kind < 2 ? verbs[what->kind] : "uses") + " a value of type " + what->type->name +
                    " " + where + describe_address(*machine, address));
}

// ---- -fsanitize=bounds: an index beyond an array of known length; local arrays have no other guard --------------------
void __ubsan_handle_out_of_bounds(const OutOfBounds* what, uintptr_t value) {
    if (!current) return;
    raise_fault(Fault::kBadAddress, EPEMU_PC, 0,
                "uses index " + text_of(what->index, value) + " of an array of type " + what->array->name +
                    ", which has none of that number");
}

// ---- -fsanitize=shift-exponent, float-cast-overflow, integer-divide-by-zero -------------------------------------------
void __ubsan_handle_shift_out_of_bounds(const Operation* what, uintptr_t left, uintptr_t right) {
    other_value("shift amount", EPEMU_PC, [&] {
        return "shifts " + text_of(what->left, left) + " of type " + what->left->name + " by " +
               text_of(what->right, right) + " (column " + std::to_string(what->column) + ")";
    });
}
void __ubsan_handle_float_cast_overflow(const Operation* what, uintptr_t value) {
    other_value("cast range", EPEMU_PC, [&] {
        return "casts " + text_of(what->left, value) + " of type " + what->left->name + " to " + what->right->name +
               " (column " + std::to_string(what->column) + ")";
    });
}
void __ubsan_handle_divrem_overflow(const Operation*, uintptr_t, uintptr_t) {
    if (current)
        raise_fault(Fault::kSignal, EPEMU_PC, 0,
                    "divides an integer by zero, for which a GPU gives any value, without a word");
}

// ---- functions that -fsanitize=thread calls ---------------------------------------------------------------------------
void __tsan_init() {}
void __tsan_func_entry(void*) {
    if (!current) return;
    // Stack for the runtime's own calls from this function. The checker's frames add up to 2.6 KB.
    constexpr ptrdiff_t kReserve = 3 << 10;
    if (static_cast<char*>(__builtin_frame_address(0)) - current->stack < kReserve)
        raise_fault(Fault::kStack, EPEMU_PC, 0, "");
}
void __tsan_func_exit() {}
// A constructor's store of an object's pointer to its virtual functions.
void __tsan_vptr_update(void** p, void*) { plain_access(reinterpret_cast<uintptr_t>(p), sizeof(*p), true, EPEMU_PC); }
void __tsan_vptr_read(void** p) { plain_access(reinterpret_cast<uintptr_t>(p), sizeof(*p), false, EPEMU_PC); }

#define PLAIN(n)                                                                                                   \
    void __tsan_read##n(void* p) { plain_access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }             \
    void __tsan_write##n(void* p) { plain_access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }             \
    void __tsan_unaligned_read##n(void* p) { plain_access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }   \
    void __tsan_unaligned_write##n(void* p) { plain_access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }   \
    void __tsan_read_write##n(void* p) { plain_access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }        \
    void __tsan_read##n##_pc(void* p, void*) { plain_access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); } \
    void __tsan_write##n##_pc(void* p, void*) { plain_access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

// Whether weak memory orders this volatile access.
static bool is_weak(uintptr_t address, int size) {
    return checker && checker->weak && size <= 8 && address % static_cast<uintptr_t>(size) == 0;
}

static void volatile_read(uintptr_t address, int size, uintptr_t pc) {
    if (!current || is_on_stack(current, address)) return;
    check_access(address, size, false, pc);
    if (size <= 8) poll(address, size, "a polling loop of volatile loads", pc);
    uint64_t older = 0;
    uint64_t* const value = is_weak(address, size) ? &older : nullptr;
    if (!checker || !checker->load(current, address, value, size, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM, pc)) return;
    if (machine->schedule->is_random()) forget_polls();  // the next poll may see more
    pending = {address, read_raw(address, size), size, false};
    is_volatile_pending = true;
    write_raw(address, older, size);
}
// The store itself follows in the kernel; polling fibers are woken now and run after it.
static void volatile_write(uintptr_t address, int size, uintptr_t pc) {
    if (!current || is_on_stack(current, address)) return;
    check_access(address, size, true, pc);
    before_signal(address, pc);
    maybe_preempt();
    if (is_weak(address, size)) {
        pending = {address, 0, size, true};
        is_volatile_pending = true;
    }
    const uint64_t* const value = is_volatile_pending ? &Checker::kLater : nullptr;
    const bool is_newest =
        !checker || checker->store(current, address, value, size, EPEMU_VOLATILE, EPEMU_SCOPE_SYSTEM, pc);
    forget_polls();
    if (!is_newest) return;
    machine->progress++;
    wake(address, size);
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

void __tsan_read_range(void* p, size_t n) { plain_access(reinterpret_cast<uintptr_t>(p), n, false, EPEMU_PC); }
void __tsan_write_range(void* p, size_t n) { plain_access(reinterpret_cast<uintptr_t>(p), n, true, EPEMU_PC); }
void* __tsan_memcpy(void* d, const void* s, size_t n) {
    if (!n) return d;
    plain_access(reinterpret_cast<uintptr_t>(s), n, false, EPEMU_PC);
    plain_access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n) {
    if (!n) return d;
    plain_access(reinterpret_cast<uintptr_t>(s), n, false, EPEMU_PC);
    plain_access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memmove(d, s, n);
}
int epemu_memcmp(const void* a, const void* b, size_t n) {
    if (!n) return 0;
    plain_access(reinterpret_cast<uintptr_t>(a), n, false, EPEMU_PC);
    plain_access(reinterpret_cast<uintptr_t>(b), n, false, EPEMU_PC);
    return memcmp(a, b, n);
}
void* __tsan_memset(void* d, int c, size_t n) {
    if (!n) return d;
    plain_access(reinterpret_cast<uintptr_t>(d), n, true, EPEMU_PC);
    return memset(d, c, n);
}

// ---- std::atomic, cuda::atomic_ref and the __atomic builtins.
#define RMW(bits, name, op)                                                                                       \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void* p, uint##bits##_t v, int order) {                  \
        return static_cast<uint##bits##_t>(                                                                       \
            atomic(op, reinterpret_cast<uintptr_t>(p), v, 0, bits / 8, order_of(order), take_scope(), EPEMU_PC)); \
    }
#define ATOMIC(bits)                                                                                                 \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile void* p, int order) {                                   \
        return static_cast<uint##bits##_t>(synchronising_load(reinterpret_cast<uintptr_t>(p), bits / 8,              \
                                                              order_of(order), take_scope(),                         \
                                                              "a polling loop of atomic loads", EPEMU_PC));          \
    }                                                                                                                \
    void __tsan_atomic##bits##_store(volatile void* p, uint##bits##_t v, int order) {                                \
        synchronising_store(reinterpret_cast<uintptr_t>(p), v, bits / 8, order_of(order), take_scope(), EPEMU_PC);   \
    }                                                                                                                \
    RMW(bits, exchange, EPEMU_ATOMIC_EXCH)                                                                           \
    RMW(bits, fetch_add, EPEMU_ATOMIC_ADD)                                                                           \
    RMW(bits, fetch_sub, EPEMU_ATOMIC_SUB)                                                                           \
    RMW(bits, fetch_and, EPEMU_ATOMIC_AND)                                                                           \
    RMW(bits, fetch_or, EPEMU_ATOMIC_OR)                                                                             \
    RMW(bits, fetch_xor, EPEMU_ATOMIC_XOR)                                                                           \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile void* p, uint##bits##_t c, uint##bits##_t v,  \
                                                              int order, int) {                                      \
        return static_cast<uint##bits##_t>(atomic(EPEMU_ATOMIC_CAS, reinterpret_cast<uintptr_t>(p), v, c, bits / 8,  \
                                                  order_of(order), take_scope(), EPEMU_PC));                         \
    }                                                                                                                \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile void* p, uint##bits##_t* c, uint##bits##_t v,         \
                                                      int order, int) {                                              \
        const auto old = static_cast<uint##bits##_t>(atomic(EPEMU_ATOMIC_CAS, reinterpret_cast<uintptr_t>(p), v, *c, \
                                                            bits / 8, order_of(order), take_scope(), EPEMU_PC));     \
        const bool same = old == *c;                                                                                 \
        *c = old;                                                                                                    \
        return same;                                                                                                 \
    }                                                                                                                \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile void* p, uint##bits##_t* c, uint##bits##_t v,           \
                                                    int success, int failure) {                                      \
        return __tsan_atomic##bits##_compare_exchange_strong(p, c, v, success, failure);                             \
    }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
void __tsan_atomic_thread_fence(int order) {
    const int scope = take_scope();
    if (!current) return;
    current->pc = EPEMU_PC;
    if (checker) checker->fence(current, order_of(order), scope);
    maybe_preempt();
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

// Accesses to memory, for the functions that compilers call (sanitizer_hooks.cpp).
#pragma once
#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "fault_injection.hpp"
#include "virtual_time.hpp"

namespace epemu {

#pragma GCC visibility push(hidden)

bool is_remote(uintptr_t address);  // in another rank's heap, seen from the running fiber
// A load whose value may end a loop. Parks the fiber if the loop cannot end before another thread stores.
void poll(uintptr_t address, int size, const char* what, uintptr_t pc);
uint64_t synchronising_load(uintptr_t address, int size, int order, int scope, const char* what, uintptr_t pc);
void synchronising_store(uintptr_t address, uint64_t value, int size, int order, int scope, uintptr_t pc);
uint64_t atomic(int op, uintptr_t address, uint64_t value, uint64_t compare, int size, int order, int scope,
                uintptr_t pc);

// Fault injection: a rank that stops no longer stores to other ranks.
inline void before_signal(uintptr_t address, uintptr_t pc) {
    if (__builtin_expect(machine->injected != nullptr, 0) && is_remote(address)) about_to_send(pc);
}

// Every other load and store.
inline void plain_access(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    if (!current) return;                 // initialisers of a kernel library, while it is loaded
    if (is_on_stack(current, address)) {  // as most are
        if (write) machine->last_local_writer = current, machine->last_local_pc = pc;
    } else {
        check_access(address, size, write, pc);
        if (__builtin_expect(checker != nullptr, 0)) checker->access(current, address, size, write ? kWrites : 0, pc);
        if (__builtin_expect(timed != nullptr, 0)) timed->access(address, size, write);
        if (write && current->polls && current->polls->num_loads) note_store(address, static_cast<int>(size));
    }
    if (--quantum < 0) {
        current->pc = pc;  // for reports, if the time limit is reached
        preempt();
    }
}

#pragma GCC visibility pop

}  // namespace epemu

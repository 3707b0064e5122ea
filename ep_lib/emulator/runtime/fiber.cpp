// Fibers: ucontext to start one, _setjmp and _longjmp to switch (10 ns; swapcontext alone makes a system call, 250 ns).
//
// A fiber gets its stack when it first runs and gives it back when it ends, so a kernel without barriers touches only
// a few stacks however many threads it has.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>

#include "machine.hpp"

namespace epemu {

Fiber* current;
Machine* machine;
jmp_buf scheduler_context;
int64_t quantum;

namespace {

// Stacks of one size, kept across machines: most runs of a session want the same number again.
struct StackPool {
    struct Chunk {
        char* memory;
        size_t bytes;
    };
    std::vector<Chunk> chunks;
    std::vector<char*> free_stacks;

    char* take(size_t stack_bytes) {
        if (free_stacks.empty()) grow(stack_bytes);
        char* stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }

    void grow(size_t stack_bytes) {
        constexpr size_t kStacks = 4096;
        const size_t bytes = kStacks * stack_bytes;
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        madvise(memory, bytes, MADV_NOHUGEPAGE);  // most stacks use a single small page
        chunks.push_back({static_cast<char*>(memory), bytes});
        for (size_t i = kStacks; i-- > 0;) free_stacks.push_back(static_cast<char*>(memory) + i * stack_bytes);
    }
};
std::map<size_t, StackPool> stack_pools;  // by size

void run_fiber() {
    Launch* launch = current->block->launch;
    launch->entry(launch->args.data());
    current->state = State::kDone;
    switch_to_scheduler();
    abort();  // a finished fiber is never resumed
}

[[noreturn]] void start(Fiber* fiber) {
    static ucontext_t context;
    const size_t bytes = machine->settings.stack_bytes;
    fiber->stack = stack_pools[bytes].take(bytes);
    fiber->started = true;
    // Stack tops staggered by cache lines: equal low address bits would fight for the same cache sets.
    const size_t stagger = reinterpret_cast<uintptr_t>(fiber->stack) / bytes % 16 * 64;
    const size_t usable = (bytes - stagger - sizeof(jmp_buf)) / 64 * 64;
    fiber->context = reinterpret_cast<jmp_buf*>(fiber->stack + usable);
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = usable;
    context.uc_link = nullptr;
    makecontext(&context, run_fiber, 0);
    setcontext(&context);
    abort();
}

}  // namespace

void switch_to(Fiber* fiber) {
    current = fiber;
    if (_setjmp(scheduler_context) == 0) {
        if (!fiber->started) start(fiber);
        _longjmp(*fiber->context, 1);
    }
    current = nullptr;
}

void switch_to_scheduler() {
    machine->switches++;
    if (_setjmp(*current->context) == 0) _longjmp(scheduler_context, 1);
}

void release_stack(Fiber* fiber, size_t stack_bytes) {
    if (!fiber->stack) return;
    stack_pools[stack_bytes].free_stacks.push_back(fiber->stack);
    fiber->stack = nullptr;
}

void release_stack_memory() {
    // Keep the address space, give most of the memory back: a notebook kernel lives for days.
    constexpr size_t kKeepBytes = 64 << 20;
    size_t kept = 0;
    for (auto& entry : stack_pools)
        for (auto& chunk : entry.second.chunks) {
            kept += chunk.bytes;
            if (kept > kKeepBytes) madvise(chunk.memory, chunk.bytes, MADV_DONTNEED);
        }
}

}  // namespace epemu

// Fibers: a switch saves the registers that a function must preserve on the stack, and takes the other stack. 10 ns;
// swapcontext makes a system call (250 ns), and _setjmp's buffer causes one more cache miss.
//
// A fiber gets its stack when it first runs and returns it when it ends, so a kernel without barriers needs only a few
// stacks for any number of threads.
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

#include <map>
#include <utility>

#include "machine.hpp"
#include "recorder.hpp"

// void epemu_switch(void** save, void* load): saves the stack pointer to *save and resumes at `load`. void
// epemu_call_on(void* stack, void (*function)(void*), void* argument): a call, on another stack.
#if defined(__x86_64__)
asm(R"(
.text
.globl epemu_switch
.hidden epemu_switch
.type epemu_switch, @function
epemu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size epemu_switch, .-epemu_switch
.hidden epemu_call_on
.globl epemu_call_on
.type epemu_call_on, @function
epemu_call_on:
    pushq %rbp
    movq %rsp, %rbp
    movq %rdi, %rsp
    movq %rdx, %rdi
    call *%rsi
    movq %rbp, %rsp
    popq %rbp
    ret
.size epemu_call_on, .-epemu_call_on
)");
constexpr int kSavedWords = 7, kReturnWord = 6, kPaddingWords = 1;  // `ret` leaves the stack as a call would
#elif defined(__aarch64__)
asm(R"(
.text
.globl epemu_switch
.hidden epemu_switch
.type epemu_switch, %function
epemu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size epemu_switch, .-epemu_switch
.hidden epemu_call_on
.globl epemu_call_on
.type epemu_call_on, %function
epemu_call_on:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    mov sp, x0
    mov x0, x2
    blr x1
    mov sp, x29
    ldp x29, x30, [sp], #16
    ret
.size epemu_call_on, .-epemu_call_on
)");
constexpr int kSavedWords = 20, kReturnWord = 11, kPaddingWords = 0;
#else
#error "the emulator runs on x86-64 and aarch64"
#endif
extern "C" void epemu_switch(void** save, void* load);
extern "C" void epemu_call_on(void* stack, void (*function)(void*), void* argument);
extern "C" {
// The running fiber's threadIdx, blockIdx, blockDim and gridDim (ep_emulator/builtins.h).
epemu_dim3 epemu_thread_idx, epemu_block_idx, epemu_block_dim, epemu_grid_dim;
}

// The beginning of this library and the end of its code, from the linker.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[], etext[];

namespace epemu {

Fiber* current;
Machine* machine;
int64_t quantum;

namespace {

// Stacks of one size, kept across machines: most runs of a session need the same number.
struct StackPool {
    bool checked;  // for runs under the checker, where all blocks are resident
    struct Chunk {
        char* memory;
        size_t bytes;
    };
    std::vector<Chunk> chunks;
    // Stacks of the first chunk, whose memory is kept between machines, are used first: the kernel zeroes a fresh huge
    // page, which takes longer than most kernels run.
    std::vector<char*> free_in_first, free_in_others;

    char* take(size_t stack_bytes) {
        if (free_in_first.empty() && free_in_others.empty()) grow(stack_bytes);
        auto& free_stacks = free_in_first.empty() ? free_in_others : free_in_first;
        char* stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }

    void give_back(char* stack) {
        const bool in_first = static_cast<size_t>(stack - chunks[0].memory) < chunks[0].bytes;
        (in_first ? free_in_first : free_in_others).push_back(stack);
    }

    void grow(size_t stack_bytes) {
        constexpr size_t kStacks = 4096;
        const size_t bytes = kStacks * stack_bytes;
        chunks.reserve(chunks.size() + 1);
        auto& free_stacks = chunks.empty() ? free_in_first : free_in_others;
        free_stacks.reserve((chunks.size() + 1) * kStacks);  // returning a stack needs no memory
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) no_memory();
        // Most stacks use a single small page. If many take turns, the first threads' stacks are in huge pages anyway:
        // 128 of them in one entry of the TLB, which otherwise misses at almost every switch.
        constexpr size_t kHugeChunks = 4, kHugeStack = 16 << 10;
        const bool huge = checked && stack_bytes <= kHugeStack && chunks.size() < kHugeChunks;
        madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        chunks.push_back({static_cast<char*>(memory), bytes});
        for (size_t i = kStacks; i-- > 0;) free_stacks.push_back(static_cast<char*>(memory) + i * stack_bytes);
    }
};
std::map<std::pair<size_t, bool>, StackPool> stack_pools;  // by size, and whether checked

StackPool& pool_of(const Fiber* fiber, size_t stack_bytes) {
    static std::pair<size_t, bool> last_key;
    static StackPool* last;
    const std::pair<size_t, bool> key = {stack_bytes, fiber->check != nullptr};
    if (!last || key != last_key) {
        last = &stack_pools[key];
        last->checked = key.second;
        last_key = key;
    }
    return *last;
}

// From another fiber of the same block.
inline void set_current(Fiber* fiber) {
    current = fiber;
    epemu_thread_idx = fiber->thread;
}

void* scheduler_stack_pointer;
bool is_borrowed;  // the scheduler's stack, by the fiber that runs

void leave_to_scheduler() {
    machine->switches++;
    epemu_switch(&current->stack_pointer, scheduler_stack_pointer);
}

// Runs a thread from its beginning to its end, and after it those lanes of its warp that have not begun: they take over
// its stack, so a kernel without barriers switches once per warp.
void run_fiber() {
    for (;;) {
        Launch* launch = current->block->launch;
        launch->entry(launch->args.data());
        finish_volatile();
        Fiber* ended = current;
        ended->state = State::kDone;
        Fiber* next = machine->schedule->next_lane();
        if (!next) break;
        machine->switches++;
        set_current(next);
        if (next->stack) {
            retire(ended);  // its stack is free, but not reused before the switch
            epemu_switch(&ended->stack_pointer, next->stack_pointer);
            abort();
        }
        next->stack = std::exchange(ended->stack, nullptr);
        retire(ended);
    }
    leave_to_scheduler();
    abort();  // a finished fiber is never resumed
}

// Makes the stack look as if the fiber had been left at the beginning of run_fiber.
void prepare(Fiber* fiber) {
    const size_t bytes = machine->settings.stack_bytes;
    fiber->stack = pool_of(fiber, bytes).take(bytes);
    if (machine->clean_stacks) memset(fiber->stack, 0, bytes);
    // Stack tops staggered by cache lines: equal low address bits would fight for the same cache sets.
    const size_t stagger = reinterpret_cast<uintptr_t>(fiber->stack) / bytes % 16 * 64;
    auto** top = reinterpret_cast<void**>(fiber->stack + bytes - stagger) - 2;  // multiples of 16
    void** saved = top - kPaddingWords - kSavedWords;
    for (int i = 0; i < kSavedWords + kPaddingWords; i++) saved[i] = nullptr;
    saved[kReturnWord] = reinterpret_cast<void*>(&run_fiber);
    fiber->stack_pointer = saved;
}

// Goes straight to the next lane of the warp if the schedule has one, which halves the number of switches.
inline __attribute__((always_inline)) void leave(Fiber* me) {
    finish_volatile();
    Fiber* next = me->state == State::kPrinting ? nullptr : machine->schedule->next_lane();
    if (!next) return leave_to_scheduler();
    machine->switches++;
    if (me->state == State::kRunnable) make_runnable(me);
    if (!next->stack) prepare(next);
    set_current(next);
    epemu_switch(&me->stack_pointer, next->stack_pointer);
}

// A function of its own, so that switches stay quick without recording.
__attribute__((noinline)) void leave_recorded(Fiber* me) {
    recorder->paused(*me);
    leave(me);
    recorder->resumed(*me);
}

}  // namespace

Fiber* switch_to(Fiber* fiber) {
    if (!fiber->stack) prepare(fiber);
    set_current(fiber);
    const Block* block = fiber->block;
    epemu_block_idx = block->index;
    epemu_block_dim = block->launch->block;
    epemu_grid_dim = block->launch->grid;
    epemu_switch(&scheduler_stack_pointer, fiber->stack_pointer);
    return std::exchange(current, nullptr);
}

void switch_to_scheduler() {
    if (__builtin_expect(recorder != nullptr, 0)) return leave_recorded(current);
    leave(current);
}

bool is_on_its_stack() {
    const char here = 0;
    return current && current->stack && static_cast<size_t>(&here - current->stack) < machine->settings.stack_bytes;
}

bool is_an_index(uintptr_t address, size_t size) {
    for (const epemu_dim3* index : {&epemu_thread_idx, &epemu_block_idx, &epemu_block_dim, &epemu_grid_dim})
        if (const uintptr_t at = address - reinterpret_cast<uintptr_t>(index); at < sizeof(*index))
            return size <= sizeof(*index) - at;
    return false;
}

namespace {

struct StateHash {
    uint64_t hash = 0xcbf29ce484222325ull;
    void mix(uint64_t word) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    void mix(const char* begin, const char* end) {
        for (; begin + 8 <= end; begin += 8) {
            uint64_t word;
            memcpy(&word, begin, 8);
            mix(word);
        }
    }
};

#ifdef __x86_64__
// The frame of the kernel that has called the runtime: the first one outside of this library. The runtime's frames hold
// its saved registers, and an unwinder knows where. Those frames themselves differ at a first poll.
struct KernelFrame {
    const char* stack = nullptr;
    StateHash registers;
};

_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* wanted) {
    constexpr int kKept[] = {3, 6, 12, 13, 14, 15};  // rbx, rbp, r12 to r15: the registers that a call preserves
    KernelFrame& frame = *static_cast<KernelFrame*>(wanted);
    const auto at = _Unwind_GetIP(context);
    if (at >= reinterpret_cast<uintptr_t>(__ehdr_start) && at < reinterpret_cast<uintptr_t>(etext))
        return _URC_NO_REASON;
    frame.registers.mix(at);
    for (const int number : kKept) frame.registers.mix(_Unwind_GetGR(context, number));
    frame.stack = reinterpret_cast<const char*>(_Unwind_GetCFA(context));
    return _URC_NORMAL_STOP;
}
#endif

}  // namespace

// Registers and stack, from the caller of the runtime up.
__attribute__((noinline)) uint64_t state_of_kernel() {
    const char* const top = current->stack + machine->settings.stack_bytes;
#ifdef __x86_64__
    KernelFrame frame;
    _Unwind_Backtrace(look_at_frame, &frame);
    if (frame.stack >= current->stack && frame.stack < top) {
        frame.registers.mix(frame.stack, top);
        return frame.registers.hash;
    }
#endif
    // Includes the runtime's own frames: a loop then returns to its state one poll later.
    jmp_buf registers;
    memset(&registers, 0, sizeof registers);
    (void)_setjmp(registers);
    StateHash state;
    state.mix(reinterpret_cast<const char*>(registers), reinterpret_cast<const char*>(registers) + sizeof registers);
    state.mix(static_cast<const char*>(__builtin_frame_address(0)), top);
    return state.hash;
}

uintptr_t caller_in_kernel() {
    struct Frames {
        int outside = 0;  // of this library, so far
        uintptr_t caller = 0;
    } frames;
    _Unwind_Backtrace(
        [](_Unwind_Context* context, void* wanted) {
            Frames& found = *static_cast<Frames*>(wanted);
            const auto at = _Unwind_GetIP(context);
            if (at >= reinterpret_cast<uintptr_t>(__ehdr_start) && at < reinterpret_cast<uintptr_t>(etext))
                return found.outside ? _URC_NORMAL_STOP : _URC_NO_REASON;
            if (++found.outside < 2) return _URC_NO_REASON;
            found.caller = at;
            return _URC_NORMAL_STOP;
        },
        &frames);
    return frames.caller;
}

bool is_on_a_borrowed_stack() { return current && is_borrowed; }
bool is_on_a_fiber() { return is_on_its_stack() || is_on_a_borrowed_stack(); }

void with_room(const std::function<void()>& work) {
    if (!is_on_its_stack()) return work();
    constexpr uintptr_t kAlign = 16;
    is_borrowed = true;
    epemu_call_on(
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(scheduler_stack_pointer) & ~(kAlign - 1)),
        [](void* work) { (*static_cast<const std::function<void()>*>(work))(); },
        const_cast<std::function<void()>*>(&work));
    is_borrowed = false;
}

void abandon_fiber() {
    is_borrowed = false;
    void* never_resumed;
    epemu_switch(&never_resumed, scheduler_stack_pointer);
    abort();
}

void release_stack(Fiber* fiber, size_t stack_bytes) {
    if (!fiber->stack) return;
    pool_of(fiber, stack_bytes).give_back(fiber->stack);
    fiber->stack = nullptr;
}

int stack_keepers;

void release_stack_memory() {
    if (stack_keepers) return;
    // Keep the address space, give most of the memory back: a notebook kernel lives for days. Each pool keeps its first
    // chunk, since plain and checked runs take turns.
    constexpr size_t kKeepBytes = 64 << 20;
    for (auto& entry : stack_pools)
        for (auto& chunk : entry.second.chunks)
            if (&chunk != &entry.second.chunks[0] || chunk.bytes > kKeepBytes)
                madvise(chunk.memory, chunk.bytes, MADV_DONTNEED);
}

}  // namespace epemu

// Faults end a run, never the process: checks raise them, and signal handlers catch the rest.
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <new>
#include <utility>

#include "machine.hpp"

namespace epemu {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
constexpr int kStopSignal = SIGURG;  // ignored by default, so a late one does no harm
struct sigaction previous[64];
pthread_t runner;
std::new_handler previous_new_handler;
sigjmp_buf* reading_text;  // jump target if the text of a kernel's printf does not exist
thread_local bool had_no_memory;
uint64_t switches_at_last_stop;

uintptr_t program_counter(const ucontext_t* context) {
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return context->uc_mcontext.pc;
#else
#error "the emulator runs on x86-64 and aarch64"
#endif
}

uintptr_t stack_pointer(const ucontext_t* context) {
#if defined(__x86_64__)
    return static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RSP]);
#else
    return context->uc_mcontext.sp;
#endif
}

// The return address of a function that was just called and has not touched the stack yet; 0 if unknown.
uintptr_t return_address(const ucontext_t* context) {
#if defined(__x86_64__)
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    const uintptr_t at = stack_pointer(context);
    const bool is_inside = at >= stack && at + sizeof at <= stack + machine->settings.stack_bytes;
    return is_inside ? *reinterpret_cast<uintptr_t*>(at) : 0;
#else
    return context->uc_mcontext.regs[30];
#endif
}

// Handles a trap of a division. Kernels check for a divisor of 0 (-fsanitize=integer-divide-by-zero), so this is the
// smallest integer divided by -1. A GPU gives the smallest integer again, and a remainder of 0. Returns whether it was
// that.
bool divide_on(ucontext_t* context) {
#if defined(__x86_64__)
    auto& registers = context->uc_mcontext.gregs;
    const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (!current->block->launch->image->contains(registers[REG_RIP], true)) return false;
    if ((code[0] & 0xf0) == 0x40) code++;  // REX
    const int mode = code[1] >> 6, operand = code[1] & 7;
    if (code[0] != 0xf7 || (code[1] >> 3 & 7) != 7) return false;  // idiv
    const bool has_base = operand == 4;                            // an address with a base and an index
    const bool is_far = mode == 2 || (mode == 0 && (has_base ? code[2] & 7 : operand) == 5);
    registers[REG_RDX] = 0;  // the remainder; the dividend's low half is the quotient
    registers[REG_RIP] = reinterpret_cast<greg_t>(code + 2 + (mode != 3 && has_base) + (is_far ? 4 : mode == 1));
    return true;
#else
    return false;  // sdiv does not trap
#endif
}

const char* signal_text(int signal) {
    switch (signal) {
        case SIGFPE: return "divides an integer by zero";
        case SIGILL: return "executes an illegal instruction";
        case SIGTRAP: return "hits a breakpoint";
        case SIGABRT: return "calls abort()";
        default: return "touches memory that does not exist";
    }
}

void leave(Fault kind, uintptr_t pc, uintptr_t address, const char* text) {
    machine->fault = kind;
    machine->faulting = current;
    machine->fault_pc = pc;
    machine->fault_address = address;
    machine->fault_text = text;
    abandon_fiber();
}

constexpr const char* kDamaged = "writes past the end of a local array, over what lies behind it on the stack";

// A return address or a pointer on the stack was overwritten: the last write to an array there is the likely one.
void leave_damaged(uintptr_t pc) {
    const bool known = machine->last_local_writer == current;
    leave(Fault::kBadAddress, known ? machine->last_local_pc : pc + 1, 0, kDamaged);
}

void on_crash(int signal, siginfo_t* info, void* context) {
    const bool is_ours = pthread_equal(pthread_self(), runner);
    if (is_ours && reading_text) siglongjmp(*reading_text, 1);
    if (!current || !is_ours) {
        sigaction(signal, &previous[signal], nullptr);  // not ours: it recurs, for the previous handler
        if (signal == SIGABRT) raise(signal);
        return;
    }
    if (signal == SIGFPE && divide_on(static_cast<ucontext_t*>(context))) return;
    const uintptr_t pc = program_counter(static_cast<ucontext_t*>(context));
    // A frame with large arrays reaches past the end before any function checks the room.
    if (signal == SIGSEGV &&
        stack_pointer(static_cast<ucontext_t*>(context)) < reinterpret_cast<uintptr_t>(current->stack) &&
        !is_on_a_borrowed_stack())
        return leave(Fault::kStack, pc + 1, 0, "");
    Dl_info nothing;
    if (!dladdr(reinterpret_cast<void*>(pc), &nothing)) {
        const uintptr_t caller = return_address(static_cast<ucontext_t*>(context));
        if (caller && current->block->launch->image->contains(caller, true))
            return leave(Fault::kSignal, caller, pc,
                         pc ? "calls a function where no code is" : "calls a function at 0x0");
        return leave_damaged(pc);  // a return to an address without code
    }
    // +1: reports look up the instruction before a return address.
    leave(Fault::kSignal, pc + 1,
          signal == SIGSEGV || signal == SIGBUS ? reinterpret_cast<uintptr_t>(info->si_addr) : 0, signal_text(signal));
}

// The signal of a requested stop. A kernel that calls the runtime sees the request by itself; this handler ends a loop
// without memory accesses.
void on_stop(int, siginfo_t*, void* context) {
    if (!machine || !current || !pthread_equal(pthread_self(), runner)) return;
    const uint64_t switches = machine->switches;
    const bool stuck = switches == switches_at_last_stop;
    switches_at_last_stop = switches;
    const uintptr_t pc = program_counter(static_cast<ucontext_t*>(context));
    if (stuck && machine->stop_request && current->block->launch->image->contains(pc, true))
        leave(Fault::kHang, pc + 1, 0, "");
}

}  // namespace

void note_no_memory() { had_no_memory = true; }

void raise_fault(Fault kind, uintptr_t pc, uintptr_t address, std::string text) {
    finish_volatile();
    machine->fault = kind;
    machine->faulting = current;
    machine->fault_pc = pc;
    machine->fault_address = address;
    machine->fault_text = std::move(text);  // nothing on an abandoned stack is ever destroyed
    abandon_fiber();
}

void no_memory() {
    if (!pthread_equal(pthread_self(), runner) || !is_on_a_fiber()) throw std::bad_alloc();
    had_no_memory = true;  // exceptions cannot pass through a kernel
    leave(Fault::kStack, 0, 0, "");
    abort();
}

bool is_text_there(const std::function<void()>& read) {
    sigjmp_buf here;
    reading_text = &here;
    const bool is_there = !sigsetjmp(here, 0);
    if (is_there) read();
    reading_text = nullptr;
    return is_there;
}

void install_signal_handlers() {
    static char alternate_stack[64 << 10];  // a fiber's stack is too small for a signal frame
    stack_t stack{};
    stack.ss_sp = alternate_stack;
    stack.ss_size = sizeof alternate_stack;
    sigaltstack(&stack, nullptr);
    runner = pthread_self();
    switches_at_last_stop = ~0ull;
    previous_new_handler = std::set_new_handler([] {
        if (!pthread_equal(pthread_self(), runner) && previous_new_handler) return previous_new_handler();
        no_memory();
    });
    struct sigaction action{};
    // SA_NODEFER: the handlers leave by a jump, which does not restore the signal mask.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    action.sa_sigaction = on_crash;
    for (int signal : kSignals) sigaction(signal, &action, &previous[signal]);
    action.sa_sigaction = on_stop;
    sigaction(kStopSignal, &action, &previous[kStopSignal]);
}

void restore_signal_handlers() {
    std::set_new_handler(previous_new_handler);
    for (int signal : kSignals) sigaction(signal, &previous[signal], nullptr);
    sigaction(kStopSignal, &previous[kStopSignal], nullptr);
}

}  // namespace epemu

extern "C" {

// The thread that runs kernels blocks all signals but those above: fibers have no room for other handlers' frames.
void epemu_prepare_thread() {
    sigset_t all;
    sigfillset(&all);
    for (int signal : epemu::kSignals) sigdelset(&all, signal);
    sigdelset(&all, epemu::kStopSignal);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// A kernel's function returns, and the guard behind its local arrays is damaged.
void epemu_stack_damaged() {
    if (epemu::current) epemu::leave_damaged(reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
    abort();
}

// Whether a function of this file or of api.cpp has run out of memory on this thread since the last call.
int epemu_take_no_memory() { return std::exchange(epemu::had_no_memory, false); }

// A kernel calls a function of the host's C library.
void epemu_host_only(const char* name, int ends) {
    if (epemu::current)
        epemu::raise_fault(epemu::Fault::kTrap, reinterpret_cast<uintptr_t>(__builtin_return_address(0)), 0,
                           std::string("calls ") + name + "(), which kernels do not have: " +
                               (ends ? "return ends a thread, __trap() the kernel"
                                     : "the host can call it, before the launch or after synchronize()"));
    abort();
}

// Asks the run in progress to stop; call again until it has returned.
void epemu_stop(epemu::Machine* m) {
    m->stop_request = 1;
    if (epemu::machine == m) pthread_kill(epemu::runner, epemu::kStopSignal);
}

}  // extern "C"

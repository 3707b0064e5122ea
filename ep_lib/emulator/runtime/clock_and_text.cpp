// Virtual time, printf, and the ends that a kernel chooses itself (trap, assert).
#include <stdarg.h>

#include "machine.hpp"
#include "virtual_time.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

using namespace epemu;

namespace {
constexpr uint64_t kTickNs = 20;  // what one look at the clock costs in virtual time

// A loop that looks at the clock may end by time alone.
void time_matters() {
    if (current->polls) current->polls->used_clock = true;
    machine->now_ns += kTickNs;
    if (timed) timed->spent(kTickNs);
    if (--quantum < 0) yield();
}
}  // namespace

extern "C" {

long long epemu_clock64() {
    time_matters();
    if (timed) return static_cast<long long>(timed->now() * timed->clock_ghz());
    return static_cast<long long>(machine->now_ns * 2);  // a virtual GPU of 2 GHz
}

uint64_t epemu_globaltimer() {
    time_matters();
    return timed ? static_cast<uint64_t>(timed->now()) : machine->now_ns;
}

// CUDA lets a sleep end early, so one turn of everybody else is as good as any duration.
void epemu_nanosleep(unsigned ns) {
    time_matters();
    if (timed) timed->spent(ns);
    yield();
}

int epemu_printf(const char* format, ...) {
    // vsnprintf wants kilobytes of stack: the scheduler formats, on its own.
    va_list args;
    va_start(args, format);
    current->format = format;
    current->format_args = &args;
    block_current(State::kPrinting, "printf", EPEMU_PC);
    va_end(args);
    return 0;
}

void epemu_trap(const char* why) { raise_fault(Fault::kTrap, EPEMU_PC, 0, why); }

void epemu_assert_fail(const char* expression, const char* file, unsigned line, const char*) {
    raise_fault(Fault::kAssert, EPEMU_PC, 0,
                std::string("assertion failed: ") + expression + " (" + file + ":" + std::to_string(line) + ")");
}

}  // extern "C"

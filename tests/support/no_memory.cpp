// Preloaded: makes "new", malloc and mmap of the emulator's runtime fail at their n-th call (test_nth_failure.py).
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace {
std::atomic<long> calls{0}, failing{0};  // counted and failed between no_memory_at(n) and no_memory_at(0)

// Only what the runtime asks for: Python, which asks as well, is not under test.
bool is_runtimes(void* caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return false;
    return strstr(info.dli_fname, "/runtime/") || strstr(info.dli_fname, "libstdc++");  // strings grow in there
}

bool fails(void* caller) {
    if (!failing || !is_runtimes(caller)) return false;
    return ++calls == failing;
}
}  // namespace

extern "C" {

long no_memory_at(long number) {
    const long counted = calls;
    calls = 0;
    failing = number;
    return counted;
}

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);

void* malloc(size_t bytes) { return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) {
    return fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (fails(__builtin_return_address(0))) return errno = ENOMEM, MAP_FAILED;
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}

}  // extern "C"

void* operator new(size_t bytes) {
    if (!fails(__builtin_return_address(0)))
        if (void* memory = __libc_malloc(bytes ? bytes : 1)) return memory;
    if (const std::new_handler handler = std::get_new_handler()) handler();
    throw std::bad_alloc();
}

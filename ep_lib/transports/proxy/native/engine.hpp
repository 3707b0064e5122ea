// The native proxy: threads of the host that take commands out of rings, and executors that carry them out.
//
// Begin here. A proxy thread (engine.cpp) serves some of the rings, each of which has a queue of its own at the executor
// (a queue pair and its completion queue, a stream of the copy engine). It copies full slots into a batch, returns their
// credits, hands the batch to the executor, and publishes what has completed. Python starts and stops the threads
// (../engine.py) and is not in their loop.
//
// An executor is a table of functions: Executor below. One file each: memory.cpp (shared memory, and none at all),
// nixl.cpp, copy_engine.cpp, and verbs/verbs.cpp, a library of its own.
#pragma once
#include <ep/proxy_command.cuh>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

namespace ep {
namespace proxy {

constexpr int kBatch = 64;          // commands that go to an executor at once, at most
constexpr size_t kTextBytes = 512;  // of an error's sentence

// What executors say went wrong; Python raises it.
struct Failure {
    char text[kTextBytes] = "";
    __attribute__((format(printf, 2, 3))) int operator()(const char* format, ...) {
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        return -1;
    }
};

// What an executor knows of the heaps: where this process has them, and how long they are.
struct Heaps {
    char* const* bases;  // by rank; null where only the executor's own means reach
    uint64_t bytes;
    int ranks, rank;
};

struct Executor {
    void* state;
    // Begins to carry out the first commands of a batch, in order; returns how many it took, fewer if its queue is full.
    // -1: it cannot, and `failure` says why.
    int (*post)(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure);
    // How many of this queue's commands have completed since the last call, in their order. Also moves on what needs a
    // push. -1 as above.
    int (*poll)(void* state, int queue, Failure* failure);
    void (*destroy)(void* state);
};

// Refuses what no executor may touch. Returns 0, or -1.
inline int check(const Heaps& heaps, const ProxyCommand& c, Failure* failure) {
    const bool copies = c.op >= kProxyWrite && c.op <= kProxyWriteAddSignal || c.op == kProxyRead;
    const bool counts = c.op >= kProxyWriteSetSignal && c.op <= kProxyAdd64;
    const uint64_t counter_bytes = c.op == kProxyAdd32 ? 4 : 8;
    if (c.op >= kNumProxyOps) return (*failure)("a command has operation %d, which does not exist", c.op);
    if (c.op != kProxyNothing && c.peer >= heaps.ranks)
        return (*failure)("a command is for rank %d; ranks are 0 to %d", c.peer, heaps.ranks - 1);
    const auto fits = [&](uint64_t offset, uint64_t bytes) {
        return offset <= heaps.bytes && bytes <= heaps.bytes - offset;
    };
    if (copies && !(fits(c.target, c.bytes) && fits(c.source, c.bytes)))
        return (*failure)("a command moves %llu bytes from offset %llu to offset %llu; a symmetric heap has %llu bytes",
                          (unsigned long long)c.bytes, (unsigned long long)c.source, (unsigned long long)c.target,
                          (unsigned long long)heaps.bytes);
    if (counts && (!fits(c.signal, counter_bytes) || c.signal % counter_bytes))
        return (*failure)("a command's signal is at offset %llu; it must be a multiple of %llu in a heap of %llu bytes",
                          (unsigned long long)c.signal, (unsigned long long)counter_bytes,
                          (unsigned long long)heaps.bytes);
    return 0;
}

// The part of a command that sets or adds to a counter, by this thread. The data before it is seen first.
inline void apply_signal(const ProxyCommand& c, char* heap) {
    char* const counter = heap + c.signal;
    switch (c.op) {
        case kProxyWriteSetSignal:
            __atomic_store_n(reinterpret_cast<uint64_t*>(counter), c.value, __ATOMIC_RELEASE);
            break;
        case kProxyWriteAddSignal:
        case kProxyAdd64: __atomic_fetch_add(reinterpret_cast<uint64_t*>(counter), c.value, __ATOMIC_RELEASE); break;
        case kProxyAdd32:
            __atomic_fetch_add(reinterpret_cast<uint32_t*>(counter), static_cast<uint32_t>(c.value), __ATOMIC_RELEASE);
            break;
        default: break;
    }
}

uint64_t now_ns();

}  // namespace proxy
}  // namespace ep

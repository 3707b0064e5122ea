// The native proxy: host threads that take commands from rings, and their executors.
//
// Begin here. A proxy thread (engine.cpp) serves some of the rings, each of which has a queue of its own at the executor
// (a queue pair and its completion queue, a stream of the copy engine). It copies full slots into a batch, returns
// their credits, posts the batch to the executor, and publishes completions. Python starts and stops the threads
// (../engine.py) and is not in their loop.
//
// An executor is a table of functions: Executor below. One file each: memory.cpp (shared memory, and no transfer at
// all), nixl.cpp, copy_engine.cpp, and verbs/verbs.cpp, a library of its own.
#pragma once
#include <ep/proxy_command.cuh>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

namespace ep {
namespace proxy {

constexpr int kBatch = 64;          // the most commands posted to an executor at once
constexpr size_t kTextBytes = 512;  // of an error's text

// An executor's error; Python raises it.
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

// The heaps for an executor: their addresses in this process, and their sizes.
struct Heaps {
    char* const* bases;  // by rank; null if only the executor's device reaches it
    uint64_t bytes;
    int ranks, rank;
};

struct Executor {
    void* state;
    // Starts the first commands of a batch, in order; returns the number accepted, fewer if its queue is full. -1: it
    // failed, and `failure` has the error.
    int (*post)(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure);
    // Returns the number of this queue's commands that have completed since the last call, in order. Also drives
    // pending work. -1 as above.
    int (*poll)(void* state, int queue, Failure* failure);
    void (*destroy)(void* state);
};

// Refuses a command outside of the heaps. `ring`: the command's ring; -1: it is from a peer's proxy. Returns 0, or -1.
inline int check(const Heaps& heaps, const ProxyCommand& c, int ring, Failure* failure) {
    using Count = unsigned long long;  // for printf
    const bool copies = c.op >= kProxyWrite && c.op <= kProxyWriteAddSignal || c.op == kProxyRead;
    const bool counts = c.op >= kProxyWriteSetSignal && c.op <= kProxyAdd64;
    const uint64_t counter_bytes = c.op == kProxyAdd32 ? 4 : 8;
    const auto fits = [&](uint64_t offset, uint64_t bytes) {
        return offset <= heaps.bytes && bytes <= heaps.bytes - offset;
    };
    const auto name = [&] {
        Failure text;
        if (ring < 0)
            text("a command of a peer");
        else
            text("command %llu of ring %d", Count(c.number - 1), ring);
        return text;
    };
    if (c.op >= kNumProxyOps)
        return (*failure)("%s has operation %d; there are 0 to %d", name().text, c.op, kNumProxyOps - 1);
    if (c.op != kProxyNothing && c.peer >= heaps.ranks)
        return (*failure)("%s is for rank %d; ranks are 0 to %d", name().text, c.peer, heaps.ranks - 1);
    if (copies && !(fits(c.target, c.bytes) && fits(c.source, c.bytes)))
        return (*failure)("%s moves %llu bytes from offset %llu to offset %llu; a symmetric heap has %llu bytes",
                          name().text, Count(c.bytes), Count(c.source), Count(c.target), Count(heaps.bytes));
    if (counts && (!fits(c.signal, counter_bytes) || c.signal % counter_bytes))
        return (*failure)("%s has its signal at offset %llu; it must be a multiple of %llu in a heap of %llu bytes",
                          name().text, Count(c.signal), Count(counter_bytes), Count(heaps.bytes));
    return 0;
}

// Applies a command's signal (a set or an addition) by this thread, after its data.
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

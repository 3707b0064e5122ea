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

// Refuses what no executor may touch. `ring`: where the command was pushed; -1: a peer's proxy has sent it. Returns 0, or
// -1.
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

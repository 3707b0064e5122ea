// Executors that need no device: one that does nothing, and one that copies between heaps which this process has mapped
// (shared memory), directly or through a buffer, as on hosts without GPUDirect.
#include "engine.hpp"

#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ep {
namespace proxy {
namespace {

// ---- Nothing: measures the cost of the ring and the threads -------------------------------------------------------------
struct Nothing {
    std::vector<int> done;  // by queue
    uint64_t* delays_ns;    // of commands with a timestamp, from their push to here
    uint64_t room;
    uint64_t count = 0;
};

int nothing_post(void* state, int queue, const ProxyCommand* batch, int count, Failure*) {
    auto& self = *static_cast<Nothing*>(state);
    self.done[queue] += count;
    for (int i = 0; i < count && self.room; i++) {
        if (!batch[i].value) continue;
        self.delays_ns[self.count % self.room] = now_ns() - batch[i].value;
        self.count++;
    }
    return count;
}
int nothing_poll(void* state, int queue, Failure*) {
    int& done = static_cast<Nothing*>(state)->done[queue];
    return std::exchange(done, 0);
}

// ---- Memory --------------------------------------------------------------------------------------------------------------
struct Memory {
    Heaps heaps;
    std::vector<char*> bases;
    std::vector<int> done;                   // by queue
    std::vector<std::vector<char>> staging;  // by queue; empty: bytes are copied directly
};

void copy(std::vector<char>& staging, char* to, const char* from, uint64_t bytes) {
    if (staging.empty()) {
        memcpy(to, from, bytes);
        return;
    }
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t part = std::min<uint64_t>(staging.size(), bytes - at);
        memcpy(staging.data(), from + at, part);
        memcpy(to + at, staging.data(), part);
        at += part;
    }
}

int memory_post(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure) {
    auto& self = *static_cast<Memory*>(state);
    for (int i = 0; i < count; i++) {
        const ProxyCommand& c = batch[i];
        if (check(self.heaps, c, queue, failure) < 0) return -1;
        char *const mine = self.bases[self.heaps.rank], *const theirs = self.bases[c.peer];
        switch (c.op) {
            case kProxyWrite:
            case kProxyWriteSetSignal:
            case kProxyWriteAddSignal: copy(self.staging[queue], theirs + c.target, mine + c.source, c.bytes); break;
            case kProxyRead: copy(self.staging[queue], mine + c.target, theirs + c.source, c.bytes); break;
            default: break;  // commands are ordered here, so a fence is a no-op
        }
        apply_signal(c, theirs);
    }
    self.done[queue] += count;
    return count;
}
int memory_poll(void* state, int queue, Failure*) { return std::exchange(static_cast<Memory*>(state)->done[queue], 0); }

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// `delays_ns` [room]: a ring buffer for the delays of commands that have a time in `value`; room 0: none.
void ep_executor_nothing(Executor* executor, int queues, uint64_t* delays_ns, uint64_t room) {
    auto self = new Nothing{std::vector<int>(queues), delays_ns, room};
    *executor = {self, nothing_post, nothing_poll, [](void* state) { delete static_cast<Nothing*>(state); }};
}

// `staging_bytes`: size of each queue's staging buffer; 0: none.
void ep_executor_memory(Executor* executor, int queues, char* const* bases, uint64_t heap_bytes, int ranks, int rank,
                        uint64_t staging_bytes) {
    auto self = new Memory{{nullptr, heap_bytes, ranks, rank}, {bases, bases + ranks}, std::vector<int>(queues)};
    self->staging.assign(queues, std::vector<char>(staging_bytes));
    *executor = {self, memory_post, memory_poll, [](void* state) { delete static_cast<Memory*>(state); }};
}

}  // extern "C"

// Detects that a run has returned to an earlier state, and what threads have seen since: a lap (laps.hpp).
#include "laps.hpp"

#include <string.h>

#include <utility>

#include "checker.hpp"
#include "network.hpp"

namespace epemu {
namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

// Four hashes side by side: each waits for its last multiplication.
uint64_t mix(uint64_t hash, const char* begin, const char* end) {
    uint64_t words[4], hashes[4] = {hash, 1, 2, 3};
    for (; begin + sizeof words <= end; begin += sizeof words) {
        memcpy(words, begin, sizeof words);
        for (int i = 0; i < 4; i++) hashes[i] = mix(hashes[i], words[i]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, begin, static_cast<size_t>(end - begin));
    for (int i = 0; i < 4; i++) hash = mix(hash, mix(hashes[i], words[i]));
    return hash;
}

// Calls `what(begin, end)` for all memory that kernels can write. Some of it may come twice.
template <class F>
void each_range(const Machine& m, F what) {
    const auto all = [&](const std::vector<Range>& ranges) {
        for (const Range& r : ranges)
            if (r.writable) what(reinterpret_cast<const char*>(r.begin), reinterpret_cast<const char*>(r.end));
    };
    for (int r = 0; r < m.num_ranks; r++) {
        const Rank& rank = m.ranks[r];
        if (!rank.queue.empty()) all(rank.queue.front()->ranges);
        for (const auto& service : rank.services) all(service->ranges);
        all(rank.ranges);
        const char* heap = m.heaps + static_cast<size_t>(r) * m.heap_stride;
        if (rank.arrays)
            for (const Range& array : *rank.arrays) what(heap + array.begin, heap + array.end);
    }
    for (const auto& block : m.resident) what(block->shared, block->shared + block->shared_bytes);
    for (const auto& image : m.images)
        for (const Range& own : image->memory)
            if (own.writable) what(reinterpret_cast<const char*>(own.begin), reinterpret_cast<const char*>(own.end));
}

}  // namespace

size_t Laps::memory_bytes() const {
    size_t bytes = 0;
    each_range(m_, [&](const char* begin, const char* end) { bytes += static_cast<size_t>(end - begin); });
    return bytes;
}

uint64_t Laps::memory(uint64_t hash) const {
    each_range(m_, [&](const char* begin, const char* end) { hash = mix(hash, begin, end); });
    return hash;
}

// A hash of the threads' waits and the launches' progress. Whether a polling thread was woken does not count, since it
// polls again when it continues.
uint64_t Laps::waits() const {
    uint64_t all = m_.blocks_created;
    for (const Rank& rank : m_.ranks) all = mix(mix(all, rank.last_ticket), rank.done_ticket);
    for (const auto& block : m_.resident) {
        uint64_t hash = mix(mix(block->id, block->arrived), block->barrier_count);
        for (const Fiber& f : block->fibers) {
            hash = mix(hash, static_cast<uint64_t>(f.state == State::kPolling ? State::kRunnable : f.state));
            hash = mix(mix(hash, f.value), f.result);
        }
        all += hash;
    }
    return all;
}

int Laps::ended(int event, int process, const Fiber* fiber) {
    if (process >= 0) {
        if (of_.size() <= static_cast<size_t>(process)) of_.resize(process + 1);
        uint64_t now = 0;
        if (fiber && fiber->stack)
            now = mix(mix(process, reinterpret_cast<uintptr_t>(fiber->stack_pointer)),
                      static_cast<const char*>(fiber->stack_pointer), fiber->stack + m_.settings.stack_bytes);
        stacks_ += now - std::exchange(of_[process], now);
    }
    // Hosts have gone on, or time may decide.
    if (std::exchange(run_, m_.runs) != m_.runs || std::exchange(clock_looks_, m_.checker->clock_looks) != clock_looks_)
        begin_again();
    if (!m_.network->in_flight.empty() || !m_.network->copies.late.empty()) return -1;
    const size_t bytes = memory_bytes();
    if (bytes > kMost || (bytes > kFew && seen_.insert(stacks_).second)) return -1;
    const auto [at, is_new] = visits_.try_emplace(memory(mix(stacks_, waits())), event + 1);
    return is_new ? -1 : at->second;
}

}  // namespace epemu

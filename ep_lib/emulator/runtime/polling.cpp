#include "polling.hpp"

#include <algorithm>

#include "machine.hpp"
#include "outages.hpp"
#include "virtual_time.hpp"

namespace epemu {
namespace {

// Wakes polling fibers: those whose values changed unseen (by plain stores), those that look at the clock, or all. In
// block order, so that runs do not depend on addresses.
size_t unpark_if(Machine& m, bool only_changed, bool only_clock) {
    std::vector<Block*> blocks;
    for (auto& b : m.resident)
        if (!has_stopped(m, b->launch->rank)) blocks.push_back(b.get());
    std::sort(blocks.begin(), blocks.end(), [](Block* a, Block* b) { return a->id < b->id; });
    m.parked.clear();
    m.num_parked = 0;
    size_t woken = 0;
    for (Block* block : blocks)
        for (Fiber& fiber : block->fibers) {
            if (fiber.state != State::kPolling) continue;
            PollSet& p = *fiber.polls;
            bool changed = false;
            for (int i = 0; i < p.num_loads && !changed; i++)
                changed = read_raw(p.loads[i].address, p.loads[i].size) != p.loads[i].value;
            if (changed) p.num_loads = 0;  // it may never look there again, and must not be woken for it again
            if (changed || (!only_changed && (!only_clock || p.used_clock))) {
                if (timed) timed->woke(&fiber);
                make_runnable(&fiber);
                woken++;
            } else {
                park(&fiber);
            }
        }
    return woken;
}

}  // namespace

bool Standstill::resolve() {
    if (unpark_if(m_, true, false)) return true;
    if (m_.progress != progress_) {
        progress_ = m_.progress;
        rounds_ = 0;
        step_ns_ = 1000;
    }
    if (!m_.num_parked) return skip_to_next_release(m_);
    // Loops with a bounded number of polls end by themselves: let everyone go round some more times.
    uint64_t fibers = 0;
    for (const auto& block : m_.resident) fibers += block->num_threads;
    const uint64_t limit = std::clamp<uint64_t>(kWork / fibers, 50, 100000);
    if (rounds_++ < limit) return unpark_if(m_, false, false) > 0;
    // Loops that look at the clock, perhaps every hundredth time, end when enough time has passed.
    if (step_ns_ < kForeverNs) {
        if (rounds_ % kRoundsPerStep == 0) step_ns_ *= 2;
        m_.now_ns = std::min(m_.now_ns + step_ns_ / kRoundsPerStep, next_release_ns(m_));
        if (timed) timed->passed(static_cast<double>(step_ns_ / kRoundsPerStep));
        return unpark_if(m_, false, true) > 0 || skip_to_next_release(m_);
    }
    return skip_to_next_release(m_);
}

void park(Fiber* fiber) {
    machine->num_parked++;
    for (int i = 0; i < fiber->polls->num_loads; i++)
        machine->parked[fiber->polls->loads[i].address / 8].push_back(fiber);
}

void wake(uintptr_t address) {
    if (!machine->num_parked) return;
    auto it = machine->parked.find(address / 8);
    if (it == machine->parked.end()) return;
    const std::vector<Fiber*> fibers = std::move(it->second);
    machine->parked.erase(it);
    for (Fiber* fiber : fibers) {
        if (fiber->state != State::kPolling) continue;  // it looked twice at this word
        machine->num_parked--;
        for (int i = 0; i < fiber->polls->num_loads; i++) {
            auto other = machine->parked.find(fiber->polls->loads[i].address / 8);
            if (other == machine->parked.end()) continue;
            auto& list = other->second;
            list.erase(std::remove(list.begin(), list.end(), fiber), list.end());
        }
        if (timed) timed->woke(fiber);
        make_runnable(fiber);
    }
}

}  // namespace epemu

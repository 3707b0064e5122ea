// Runs that return to a state: the stacks and waits of all threads, and all memory that kernels can write. The events
// in between, a lap, can then repeat for ever.
#pragma once
#include <stdint.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "machine.hpp"

namespace epemu {

class Laps {
  public:
    explicit Laps(const Machine& m) : m_(m) {}
    // Notes the end of an event of a thread or (-1) a NIC. `fiber`: null if the thread has ended. Returns the first
    // event of the lap that it completes, or -1.
    int ended(int event, int process, const Fiber* fiber);
    // Forgets earlier states: a load has returned an older value, which cannot happen again and again.
    void begin_again() { visits_.clear(); }

  private:
    static constexpr size_t kFew = 16 << 10;   // bytes of memory up to which each state is examined
    static constexpr size_t kMost = 16 << 20;  // larger memory is not examined
    uint64_t memory(uint64_t hash) const;
    size_t memory_bytes() const;
    uint64_t waits() const;

    const Machine& m_;
    uint64_t stacks_ = 0;       // hash of all threads' stacks
    std::vector<uint64_t> of_;  // hash of each process's stack
    uint64_t run_ = 0, clock_looks_ = 0;
    std::unordered_set<uint64_t> seen_;         // stacks
    std::unordered_map<uint64_t, int> visits_;  // states, and the event after each
};

}  // namespace epemu

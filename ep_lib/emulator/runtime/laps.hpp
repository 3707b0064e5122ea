// Runs that come back to a state: the stacks of all threads, what they wait in, and all memory that kernels can write. What
// happened in between, a lap, can then happen again and again.
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
    // An event has ended, that of a thread or (-1) of a NIC. `fiber`: null if it is no more. Returns the first event of
    // the lap that it ends, or -1.
    int ended(int event, int process, const Fiber* fiber);
    // What was done is nothing that can be done again and again: a load has returned an older value.
    void begin_again() { visits_.clear(); }

  private:
    static constexpr size_t kFew = 16 << 10;   // bytes of memory, so that each state is worth a look
    static constexpr size_t kMost = 16 << 20;  // more is not looked at
    uint64_t memory(uint64_t hash) const;
    size_t memory_bytes() const;
    uint64_t waits() const;

    const Machine& m_;
    uint64_t stacks_ = 0;       // of all threads
    std::vector<uint64_t> of_;  // by process
    uint64_t run_ = 0, clock_looks_ = 0;
    std::unordered_set<uint64_t> seen_;         // stacks
    std::unordered_map<uint64_t, int> visits_;  // states, and the event after each
};

}  // namespace epemu

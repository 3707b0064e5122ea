// Threads in loops that look at memory again and again: parked until what they look at changes.
#pragma once
#include <stdint.h>

namespace epemu {

struct Machine;

// What happens when no warp is runnable: is it over, or do bounded loops and time limits still change something?
class Standstill {
  public:
    explicit Standstill(Machine& m) : m_(m) {}

    // Returns false when nothing can ever go on.
    bool resolve();

  private:
    static constexpr uint64_t kWork = 2000000, kRoundsPerStep = 64, kForeverNs = 1000000000ull * 100000;
    Machine& m_;
    uint64_t progress_ = ~0ull, rounds_ = 0, step_ns_ = 1000;
};

}  // namespace epemu

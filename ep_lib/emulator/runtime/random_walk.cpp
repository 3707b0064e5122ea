// The random walk: any runnable warp may be next; preemptions, stalls and network events are random.
#include <algorithm>

#include "machine.hpp"
#include "network.hpp"
#include "schedule.hpp"

namespace epemu {
namespace {

class RandomWalk : public QueueSchedule {
  public:
    using QueueSchedule::QueueSchedule;

    bool step() override {
        const bool traffic = !m_.network->in_flight.empty();
        if (queue_.empty()) return traffic && network_step(m_);
        if (traffic && m_.random.below(parameters_.deliver_one_in) == 0) network_step(m_);
        run_turn(pick());
        return true;
    }

    void synchronise() override {
        if (m_.random.below(parameters_.preempt_one_in) == 0) preempt();
    }

    void preempt() override {
        if (m_.random.below(parameters_.stall_one_in) == 0) {
            // A stall lasts one to a hundred turns of every warp: long enough for others to finish their work.
            const uint64_t round = queue_.size() + 1;
            current->warp->stalled_until = m_.picks + (round << m_.random.below(kLongestStall));
        }
        step_aside();
    }

    void yield() override { step_aside(); }

  private:
    static constexpr uint32_t kLongestStall = 8;  // as a power of two, in turns of every warp
    static constexpr int kTries = 4;              // picks before a stalled warp runs after all
    // A thread usually runs long until its preemption; now and then only for a few accesses, so that it stops anywhere.
    static constexpr uint32_t kShortQuantumOneIn = 16, kShortQuantum = 256;

    // Picks any warp, if possible not a stalled one.
    size_t pick() {
        const auto n = static_cast<uint32_t>(queue_.size());
        uint32_t pick = m_.random.below(n);
        for (int i = 0; i < kTries && queue_[pick]->stalled_until > m_.picks; i++) pick = m_.random.below(n);
        return pick;
    }

    int64_t draw_quantum() const override {
        return m_.random.below(kShortQuantumOneIn) ? kLongQuantum : 1 + m_.random.below(kShortQuantum);
    }
};

}  // namespace

std::unique_ptr<Schedule> make_random_walk(Machine& m) { return std::make_unique<RandomWalk>(m); }

}  // namespace epemu

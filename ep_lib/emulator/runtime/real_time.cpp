// The schedule of a machine that shares its heaps with other processes: any warp that is ready
// may be next, and time is the clock of the computer. Real concurrency decides the order of ranks, so runs do not
// replay from a seed.
//
// Other processes store without notice. So this one checks the locations that its threads poll between turns, and
// repeatedly when none of its threads can run; then it sleeps between checks, longer and longer, so that more ranks
// than cores make progress.
#include <time.h>

#include <algorithm>

#include "machine.hpp"
#include "network.hpp"
#include "schedule.hpp"

namespace epemu {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;

int64_t real_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 * kMillisecond + now.tv_nsec;
}

class RealTime : public QueueSchedule {
  public:
    explicit RealTime(Machine& m) : QueueSchedule(m) { parameters_.split_one_in = kSplitOneIn; }

    bool step() override {
        const bool traffic = !m_.network->in_flight.empty();
        if (queue_.empty()) return traffic && network_step(m_);
        if (traffic && ++turns_ % kTurnsPerDelivery == 0) network_step(m_);
        run_turn(m_.random.below(static_cast<uint32_t>(queue_.size())));
        idle_ = 0;
        return true;
    }

    void synchronise() override {}
    void preempt() override { step_aside(); }
    void yield() override { step_aside(); }

    double now_ns() const override { return static_cast<double>(real_ns()); }
    void spend(double) override {}
    void pass(double) override {}

    Look look() override {
        if (++looks_ % kTurnsPerLook != 0) return Look::kNothing;
        return due(real_ns());
    }

    Look wait() override {
        if (++idle_ > kEagerLooks) {
            const uint64_t doublings = std::min<uint64_t>((idle_ - kEagerLooks) / kNapsOfALength, 16);
            const int64_t ns = std::min(kLongestNap, kShortestNap << doublings);
            const timespec nap = {0, ns};
            nanosleep(&nap, nullptr);
        }
        const Look look = due(real_ns());
        return look == Look::kNothing ? Look::kChanged : look;
    }

  private:
    static constexpr uint32_t kSplitOneIn = 1 << 20;  // turns of a warp in which only some lanes go on
    static constexpr uint64_t kTurnsPerDelivery = 4, kTurnsPerLook = 64, kEagerLooks = 32, kNapsOfALength = 8;
    static constexpr int64_t kShortestNap = 10 * kMicrosecond, kLongestNap = kMillisecond;
    static constexpr int64_t kChangedEvery = 100 * kMicrosecond;
    static constexpr int64_t kAllEvery = kMillisecond / 2, kEach = 20 * kMicrosecond,
                             kAllAtLeastEvery = 50 * kMillisecond;

    // Loops that count polls, or that read the clock now and then, also continue: more often if fewer threads wait.
    Look due(int64_t now) {
        const int64_t every = std::clamp(static_cast<int64_t>(m_.num_parked) * kEach, kAllEvery, kAllAtLeastEvery);
        if (now - all_ > every) return all_ = changed_ = now, Look::kAll;
        if (now - changed_ > kChangedEvery) return changed_ = now, Look::kChanged;
        return Look::kNothing;
    }

    uint64_t turns_ = 0, looks_ = 0, idle_ = 0;
    int64_t all_ = 0, changed_ = 0;  // time of the last check of each
};

}  // namespace

std::unique_ptr<Schedule> make_real_time(Machine& m) { return std::make_unique<RealTime>(m); }

}  // namespace epemu

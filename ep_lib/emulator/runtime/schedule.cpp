// The common part of schedules: finding the policy of a seed, time that only counts, and the turns of warps.
#include "schedule.hpp"

#include "fault_injection.hpp"
#include "machine.hpp"

extern "C" char* epemu_shared_base;

namespace epemu {

// These seeds run the lanes of a warp in a rotation, all or some at a time, and treat three equal polls as a wait: that
// is quick and finds most mistakes. Later seeds try every order of the lanes, one at a time in some seeds, and more
// polls before a wait.
constexpr uint64_t kQuickSeeds = 100;

std::unique_ptr<Schedule> make_schedule(Machine& m) {
    using Make = std::unique_ptr<Schedule> (*)(Machine&);
#define EPEMU_MAKE(name) make_##name,
    constexpr Make kMake[] = {EPEMU_POLICIES(EPEMU_MAKE)};
#undef EPEMU_MAKE
    if (m.has_other_processes()) return make_real_time(m);
    return kMake[static_cast<uint64_t>(policy_of(m.settings.seed))](m);
}

uint32_t Schedule::choose(Choice, uint32_t options) { return m_.random.below(options); }

uint32_t Schedule::choose_lanes() { return static_cast<uint32_t>(m_.random.next() >> 32); }

bool Schedule::looks(PollSet& seen, int which, bool is_new, bool is_same) {
    const uint64_t more = m_.settings.seed < kQuickSeeds ? 0 : m_.settings.seed / 2 % 4;
    return !is_new && is_same && ++seen.loads[which].repeats >= kRepeatsToPark + more;
}

void Schedule::woke(Fiber* fiber) { make_runnable(fiber); }

double Schedule::now_ns() const { return static_cast<double>(m_.now_ns); }

void Schedule::spend(double ns) {
    if (m_.time_stands()) {
        m_.still_for--;
    } else {
        m_.now_ns += static_cast<uint64_t>(ns);
    }
}

void Schedule::pass(double ns) { m_.now_ns += static_cast<uint64_t>(ns); }

void Schedule::drain() {
    while (!m_.network->in_flight.empty() && (network_step(m_) || skip_to_next_release(m_))) {
    }
}

QueueSchedule::QueueSchedule(Machine& m) : Schedule(m) {
    constexpr uint32_t kPreempt[] = {2, 4, 16}, kStall[] = {1, 2, 16}, kSplit[] = {2, 8, 64}, kDeliver[] = {2, 8, 64};
    Random& random = m.random;
    parameters_ = {kPreempt[random.below(3)], kStall[random.below(3)], kSplit[random.below(3)],
                   kDeliver[random.below(3)]};
}

// Prefetches the data that a thread needs first when it continues: it has left the caches meanwhile.
static void prefetch(const Fiber& next) {
    constexpr int kLine = 64, kLines = 4;  // cache lines of its stack
    const char* stack = static_cast<const char*>(next.stack_pointer);
    for (int line = 0; line < kLines; line++) __builtin_prefetch(stack + line * kLine);
    __builtin_prefetch(next.check);
}

void QueueSchedule::ready(Warp* warp, uint32_t lanes) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) warp->lanes[__builtin_ctz(rest)].state = State::kRunnable;
    if (!warp->runnable) {
        queue_.push_back(warp);
        queued(warp);
    }
    warp->runnable |= lanes;
}

static uint32_t pick_lane(Machine& m, uint32_t lanes) {
    if (m.settings.seed >= kQuickSeeds)
        for (uint32_t skipped = m.random.below(__builtin_popcount(lanes)); skipped; skipped--) lanes &= lanes - 1;
    return static_cast<uint32_t>(__builtin_ctz(lanes));
}

void QueueSchedule::run_turn(size_t index) {
    Warp* warp = queue_[index];
    queue_[index] = queue_.back();
    queue_.pop_back();
    m_.picks++;
    if (!m_.time_stands()) m_.now_ns++;
    epemu_shared_base = warp->block->shared;
    uint32_t lanes = warp->runnable;
    warp->runnable = 0;
    if (queue_.size() + 1 < kCrowd && m_.random.below(parameters_.split_one_in) == 0) {
        constexpr uint32_t kRough = 4;
        const bool one = m_.settings.seed >= kQuickSeeds && parameters_.split_one_in < kRough;
        const uint32_t some = one ? 1u << pick_lane(m_, lanes) : lanes & static_cast<uint32_t>(m_.random.next() >> 32);
        if (some && some != lanes) {
            ready(warp, lanes & ~some);
            lanes = some;
        }
    }
    warp_ = warp;
    first_lane_ = m_.random.below(kWarpSize);
    lanes_left_ = lanes >> first_lane_ | (first_lane_ ? lanes << (kWarpSize - first_lane_) : 0);
    for (uint32_t rest = lanes; rest; rest &= rest - 1) __builtin_prefetch(&warp->lanes[__builtin_ctz(rest)]);
    while (Fiber* fiber = next_lane()) {
        run_lane(m_, fiber);
        if (m_.fault != Fault::kNone) return;
    }
    end_turn(m_, warp);
}

Fiber* QueueSchedule::next_lane() {
    while (lanes_left_) {
        const uint32_t place = pick_lane(m_, lanes_left_), lane = (first_lane_ + place) % kWarpSize;
        lanes_left_ &= ~(1u << place);
        if (!may_go_on(warp_)) {
            ready(warp_, 1u << lane);
        } else if (!m_.injected || !has_stopped(m_, warp_->block->launch->rank)) {
            quantum = draw_quantum();
            if (lanes_left_) prefetch(warp_->lanes[(first_lane_ + __builtin_ctz(lanes_left_)) % kWarpSize]);
            return &warp_->lanes[lane];
        }
    }
    return nullptr;
}

}  // namespace epemu

#include "pct.hpp"

#include <algorithm>

#include "machine.hpp"

namespace epemu {
namespace {

constexpr uint32_t kLongestProgram = 18;  // as a power of two, in steps: changes come before that
constexpr uint64_t kLongStreak = 4096;    // steps of one warp with nobody else in between
constexpr size_t kCrowd = 2048;           // runnable warps from which on anyone is picked

}  // namespace

int pct_depth(uint64_t seed) {
    constexpr uint64_t kDepths = 4;  // most bugs take one to three steps in a certain order
    return seed % 2 ? static_cast<int>(1 + seed / 2 % kDepths) : 0;
}

Pct::Pct(Machine& m, int depth) : m_(m), depth_(depth) {
    for (int i = 1; i < depth; i++) {
        const uint64_t scale = uint64_t{1} << m.random.below(kLongestProgram);
        changes_.push_back(scale + m.random.below(static_cast<uint32_t>(scale)));
    }
}

int64_t Pct::fresh_priority() { return 1 + static_cast<int64_t>(m_.random.next() >> 2); }

bool Pct::step() {
    steps_++;
    return std::find(changes_.begin(), changes_.end(), steps_) != changes_.end();
}

void Pct::woke(const Warp* warp) { top_ = std::max(top_, warp->priority); }

void Pct::fall_behind(Warp* warp) { warp->priority = --lowest_; }

void Pct::posted(NetOp* op) {
    op->priority = fresh_priority();
    network_top_ = std::max(network_top_, op->priority);
}

bool Pct::outranked(const Warp* warp) const { return warp->priority < std::max(top_, network_top_); }

void Pct::synchronised(Warp* warp) {
    streak_ = warp == last_ ? streak_ + 1 : 0;
    last_ = warp;
    if (step() || streak_ > kLongStreak) {
        streak_ = 0;
        fall_behind(warp);
    }
    if (outranked(warp)) step_aside();
}

size_t Pct::highest_warp() {
    const auto& queue = m_.run_queue;
    if (queue.size() > kCrowd) return m_.random.below(static_cast<uint32_t>(queue.size()));
    size_t best = 0;
    int64_t second = INT64_MIN;
    for (size_t i = 1; i < queue.size(); i++) {
        if (queue[i]->priority > queue[best]->priority) {
            second = queue[best]->priority;
            best = i;
        } else {
            second = std::max(second, queue[i]->priority);
        }
    }
    top_ = second;
    return best;
}

bool Pct::move_network() {
    auto& ops = m_.network->in_flight;
    if (ops.empty()) return false;
    int64_t above = INT64_MIN;
    if (m_.run_queue.size() > kCrowd) {
        above = 0;
    } else {
        for (const Warp* warp : m_.run_queue) above = std::max(above, warp->priority);
    }
    std::vector<NetOp*> order;
    for (const auto& op : ops)
        if (op->priority > above) order.push_back(op.get());
    std::sort(order.begin(), order.end(), [](const NetOp* a, const NetOp* b) { return a->priority > b->priority; });
    network_top_ = INT64_MIN;
    for (NetOp* op : order) {
        const bool completes = op->delivered;
        if (!network_move(m_, op)) continue;  // it waits for others: those that follow are next
        if (step() && !completes) op->priority = --lowest_;
        return true;
    }
    return false;
}

}  // namespace epemu

// Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010): every warp and every
// operation of a NIC gets a random priority, and the highest one runs. At d - 1 random steps of the program the running
// one gets the lowest priority. A bug that needs d steps in a certain order is then found with a probability that has a
// lower bound, for any number of other events in between.
//
// Differences from the paper: a program's length is known only after a measured run (Settings::program_steps). Then
// half of the changes are drawn uniformly, as in the paper, and half log-uniformly, for the program's beginning;
// without a known length, all are log-uniform. Where there are changes, one more comes between two reads of words that
// one other thread stores: a reader of a sequence lock is found there. A warp that polls for long also gets the lowest
// priority, or no other would ever run.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "machine.hpp"
#include "network.hpp"
#include "schedule.hpp"

namespace epemu {
namespace {

class Pct : public QueueSchedule {
  public:
    Pct(Machine& m, int depth) : QueueSchedule(m) {
        constexpr uint64_t kPeriod = 8, kTears = 3;  // seeds of all depths, and places to choose from
        if (depth > 1) until_torn_ = 1 + m.settings.seed / kPeriod % kTears;
        const uint64_t length = m.settings.program_steps;
        uint32_t scales = kLongestProgram;
        if (length)
            for (scales = 1; (uint64_t{1} << scales) < length; scales++) {
            }
        for (int i = 1; i < depth; i++) {
            if (length && m.random.below(2) == 0) {
                changes_.push_back(1 + m.random.below(static_cast<uint32_t>(std::min<uint64_t>(length, UINT32_MAX))));
            } else {
                const uint64_t scale = uint64_t{1} << m.random.below(scales);
                changes_.push_back(scale + m.random.below(static_cast<uint32_t>(scale)));
            }
        }
    }

    bool step() override {
        network_top_ = INT64_MIN;  // finished operations included
        if (!m_.network->in_flight.empty() && move_network()) return true;
        if (queue_.empty()) return false;
        run_turn(highest_warp());
        return true;
    }

    void synchronise() override {
        Warp* warp = current->warp;
        streak_ = warp == last_ ? streak_ + 1 : 0;
        last_ = warp;
        if (std::exchange(torn_, nullptr) == current || is_change() || streak_ > kLongStreak) {
            streak_ = 0;
            fall_behind(warp);
        }
        if (outranked(warp)) step_aside();
    }

    // With a change to come, there is one more where a thread has read some of the words that another one stores.
    void touched(uintptr_t address, size_t, Touch how) override {
        constexpr uint64_t kBegins = 1 << 12;  // steps: what remembers words slows all of them
        if (until_torn_ && steps_ < kBegins && reads_more(address, how) && !--until_torn_) torn_ = current;
    }

    void preempt() override { yield(); }
    void yield() override {
        fall_behind(current->warp);
        step_aside();
    }

    void admitted(Block* block) override {
        for (Warp& warp : block->warps) warp.priority = fresh_priority();
    }
    void posted(NetOp* op) override {
        op->priority = fresh_priority();
        network_top_ = std::max(network_top_, op->priority);
    }

  private:
    static constexpr uint32_t kLongestProgram = 18;  // as a power of two, in steps: changes come before that
    static constexpr uint64_t kLongStreak = 4096;    // steps of one warp with no other in between

    // Whether the running thread has just read a word of the thread whose other word it has read before: that one may
    // store both again before the next read, as around a sequence lock.
    bool reads_more(uintptr_t address, Touch how) {
        if (!current) return false;  // a NIC
        if (how != Touch::kRead) {
            writers_[address] = current;
            return false;
        }
        const auto by = writers_.find(address);
        const Fiber* const writer = by == writers_.end() || by->second == current ? nullptr : by->second;
        const LastRead before = std::exchange(reads_[current], {address, writer});
        return writer && before.writer == writer && before.address != address;
    }

    bool is_change() {
        steps_++;
        return std::find(changes_.begin(), changes_.end(), steps_) != changes_.end();
    }
    int64_t fresh_priority() { return 1 + static_cast<int64_t>(m_.random.next() >> 2); }
    void fall_behind(Warp* warp) { warp->priority = --lowest_; }
    bool outranked(const Warp* warp) const { return warp->priority < std::max(top_, network_top_); }
    void queued(const Warp* warp) override { top_ = std::max(top_, warp->priority); }
    bool may_go_on(const Warp* warp) const override { return !outranked(warp); }

    size_t highest_warp() {
        if (queue_.size() > kCrowd) return m_.random.below(static_cast<uint32_t>(queue_.size()));
        size_t best = 0;
        int64_t second = INT64_MIN;
        for (size_t i = 1; i < queue_.size(); i++) {
            if (queue_[i]->priority > queue_[best]->priority) {
                second = queue_[best]->priority;
                best = i;
            } else {
                second = std::max(second, queue_[i]->priority);
            }
        }
        top_ = second;
        return best;
    }

    // Moves an operation with a higher priority than all warps. False if none can move.
    bool move_network() {
        int64_t above = INT64_MIN;
        if (queue_.size() > kCrowd) {
            above = 0;
        } else {
            for (const Warp* warp : queue_) above = std::max(above, warp->priority);
        }
        std::vector<NetOp*> order;
        for (const auto& op : m_.network->in_flight)
            if (op->priority > above) order.push_back(op.get());
        std::sort(order.begin(), order.end(), [](const NetOp* a, const NetOp* b) { return a->priority > b->priority; });
        for (NetOp* op : order) {
            if (!network_move(m_, op)) continue;  // it waits for others: try the next
            if (is_change() && is_in_flight(op)) op->priority = --lowest_;
            return true;
        }
        return false;
    }

    // Compares addresses only: an ended operation no longer exists.
    bool is_in_flight(const NetOp* op) const {
        const auto& ops = m_.network->in_flight;
        return std::any_of(ops.begin(), ops.end(), [op](const auto& other) { return other.get() == op; });
    }

    uint64_t steps_ = 0, streak_ = 0;
    const Warp* last_ = nullptr;
    std::vector<uint64_t> changes_;
    struct LastRead {
        uintptr_t address = 0;
        const Fiber* writer = nullptr;
    };
    std::unordered_map<uintptr_t, const Fiber*> writers_;
    std::unordered_map<const Fiber*, LastRead> reads_;
    uint64_t until_torn_ = 0;          // reads_more() until then; 0: no more
    const Fiber* torn_ = nullptr;      // it falls behind at its next operation
    int64_t lowest_ = 0;               // the lowest priority given so far
    int64_t top_ = INT64_MIN;          // an upper bound of the queued warps' priorities
    int64_t network_top_ = INT64_MIN;  // the highest priority of an operation that can move
};

}  // namespace

int pct_depth(uint64_t seed) {
    constexpr uint64_t kDepths = 4;  // most bugs take one to three steps in a certain order
    if (policy_of(seed) != Policy::pct) return 0;
    return static_cast<int>(1 + seed / static_cast<uint64_t>(Policy::kCount) % kDepths);
}

std::unique_ptr<Schedule> make_pct(Machine& m) { return std::make_unique<Pct>(m, pct_depth(m.settings.seed)); }

}  // namespace epemu

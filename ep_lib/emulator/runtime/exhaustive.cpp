// A run of an exploration: a thread runs up to its next visible operation, or a NIC makes a step.
#include "exploration.hpp"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "checker.hpp"
#include "fault_injection.hpp"
#include "laps.hpp"
#include "machine.hpp"
#include "network.hpp"

extern "C" char* epemu_shared_base;

namespace epemu {
namespace {

constexpr uint64_t kElsewhere = 4ull << 48, kShared = 2ull << 48, kHeaps = 1ull << 48, kSomewhere = 1ull << 48;
// Queues and links as places, for the order between operations of NICs: above all memory.
constexpr uintptr_t kQueues = 1ull << 56, kLinks = 1ull << 57;

class Exhaustive : public Schedule {
  public:
    Exhaustive(Machine& m, Exploration& exploration) : Schedule(m), all_(exploration), ranks_(m.num_ranks), laps_(m) {
        m.clean_stacks = true;
        all_.begin();
        m.reads_matter = true;
    }

    bool step() override { return advance(true); }

    void ready(Warp* warp, uint32_t lanes) override {
        for (uint32_t rest = lanes; rest; rest &= rest - 1) warp->lanes[__builtin_ctz(rest)].state = State::kRunnable;
        warp->runnable |= lanes;
    }

    // A thread runs until it has done something visible: the event ends where the next one would begin.
    void synchronise() override {
        if (has_acted_) step_aside();
    }
    void preempt() override {
        now_ns_ += kLongLoopNs;  // only the clock can end such a loop
        step_aside();
    }
    void yield() override {
        if (has_acted_ || quantum < 0) preempt();
    }

    // ---- who there is
    void admitted(Block* block) override {
        const Launch& launch = *block->launch;
        const auto& grid = launch.grid;
        const int64_t number = block->index.x + int64_t{grid.x} * (block->index.y + int64_t{grid.y} * block->index.z);
        const bool is_calm = !launch.is_service && all_.is_calm(launch.kernel);
        if (number == 0) launched(launch);
        for (size_t t = 0; t < block->fibers.size(); t++) {
            const int process = all_.process_of(
                {0, launch.rank, launch.is_service ? -1 : launch.ticket, number, static_cast<int64_t>(t), 0, 0});
            if (threads_.size() <= static_cast<size_t>(process)) threads_.resize(process + 1);
            threads_[process] = Thread{};
            threads_[process].is_calm = is_calm;
            threads_[process].fiber = &block->fibers[t];
            threads_[process].after = ranks_[launch.rank].done;
            threads_[process].all_before = ranks_[launch.rank].all_before;
            process_of_[&block->fibers[t]] = process;
        }
        for (Warp& warp : block->warps) {  // in the order of their threads' keys
            const auto comes_before = [&](const Warp* a, const Warp* b) { return key_of(a) < key_of(b); };
            warps_.insert(std::upper_bound(warps_.begin(), warps_.end(), &warp, comes_before), &warp);
        }
    }
    void finished(Block* block) override {
        for (const Fiber& fiber : block->fibers) {
            const int last = thread_of(&fiber).last_event;
            if (last >= 0) ranks_[block->launch->rank].done.push_back(last);
            process_of_.erase(&fiber);
        }
        warps_.erase(std::remove_if(warps_.begin(), warps_.end(), [&](Warp* w) { return w->block == block; }),
                     warps_.end());
    }
    void hosts_met() override {
        all_.host_did(0);
        for (RankState& rank : ranks_) rank.all_before = static_cast<int>(all_.events().size());
    }

    // ---- order between events beyond the memory that they touch
    void woke(Fiber* fiber) override {
        if (is_open_) {
            Thread& thread = thread_of(fiber);
            if (fiber->state == State::kPolling)
                thread.woken_by = all_.last_event();
            else
                thread.after.push_back(all_.last_event());
        }
        make_runnable(fiber);
    }
    void join(Warp* warp, uint32_t mask) override {
        std::vector<Fiber*> all;
        for (uint32_t rest = mask; rest; rest &= rest - 1) all.push_back(&warp->lanes[__builtin_ctz(rest)]);
        join(all);
    }
    void join(Block* block) override {
        std::vector<Fiber*> all;
        for (Fiber& fiber : block->fibers)
            if (fiber.state == State::kBarrier) all.push_back(&fiber);
        join(all);
    }
    void join(const std::vector<Fiber*>& fibers) override {
        if (!is_open_) return;
        std::vector<int> events = {all_.last_event()};
        for (const Fiber* fiber : fibers)
            if (const int last = thread_of(fiber).last_event; last >= 0) events.push_back(last);
        for (const Fiber* fiber : fibers) {
            auto& after = thread_of(fiber).after;
            after.insert(after.end(), events.begin(), events.end());
        }
        has_acted_ = true;
    }

    // ---- choices
    uint32_t choose(Choice what, uint32_t options) override {
        switch (what) {
            case Choice::kPieces:
            case Choice::kDelay: return options - 1;  // as many pieces as possible; the choice of events covers delays
            case Choice::kPause: return 0;            // a copy's read and write are two events
            case Choice::kSplit: return is_open_ && all_.choose(2) ? 0 : options - 1;
            default: break;
        }
        const uint32_t chosen = is_open_ ? all_.choose(options) : 0;
        if (!chosen) return 0;
        laps_.begin_again();  // an older value may be read only once
        Thread& thread = thread_of(current);
        thread.older_from = static_cast<int64_t>(thread.touching.size());
        return chosen;
    }
    uint32_t choose_lanes() override { return 0; }
    bool is_random() const override { return false; }

    void met(uintptr_t address, size_t size) override {
        if (!is_open_) return;
        uint64_t& hash = all_.event().read;
        for (size_t at = 0; at < std::min(size, kMostRead); at += 8) {
            uint64_t word = 0;
            memcpy(&word, reinterpret_cast<const void*>(address + at), std::min<size_t>(size - at, 8));
            hash = mix(hash, meant(word));
        }
    }
    void touched(uintptr_t address, size_t size, Touch how) override {
        if (!is_open_) return;
        if (address >= kFirstAddress && address < kQueues) met(address, size);
        Exploration::Touched touched = {address, address + size, kElsewhere, kSomewhere, how};
        const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
        if (in_heaps < m_.heaps_bytes) {
            touched.place = kHeaps + in_heaps;
            touched.length = size;
        } else if (address >= kQueues) {
            touched.place = address;
            touched.length = size;
        } else if (current &&
                   address - reinterpret_cast<uintptr_t>(current->block->shared) < current->block->shared_bytes) {
            const auto& key = all_.key_of(process_of_.at(&current->block->fibers[0]));
            touched.place = kShared + ((key[1] * 1021 + key[2]) * 65521 + key[3]) % (1 << 20) * kSharedSlotBytes +
                            (address - reinterpret_cast<uintptr_t>(current->block->shared));
            touched.length = size;
        } else if (current) {
            if (const uint64_t place = place_in_argument(*current->block->launch, address)) {
                touched.place = place;
                touched.length = size;
            }
        }
        if (all_.draws() && how == Touch::kWrite && current && current->polls) ends_its_wait(address);
        all_.event().touches.push_back(touched);
        pcs_.resize(all_.events().size());
        if (current) {
            pcs_.back() = current->pc;
            thread_of(current).touching.push_back(all_.last_event());
        }
        has_acted_ = true;
    }

    // ---- loops that wait
    bool looks(PollSet& seen, int which, bool is_new, bool is_same) override {
        // The state includes this frame, which must hold nothing that differs between two polls.
        return looks(seen, which, is_new, is_same, state_of_kernel());
    }
    __attribute__((noinline)) bool looks(PollSet& seen, int which, bool is_new, bool is_same, uint64_t state) {
        PollSet::Seen& look = seen.loads[which];
        count_turn(look);
        Thread& thread = thread_of(current);
        const bool only_looks = thread.only_looks_from >= 0 && look.mark >= thread.only_looks_from;
        const bool comes_back = !is_new && (look.state == state || only_looks);
        if (comes_back) {
            for (size_t i = look.mark; i < thread.touching.size(); i++) all_.forget(thread.touching[i]);
            if (only_looks && look.mark < thread.touching.size()) all_.sleep_again(thread.touching[look.mark]);
            thread.touching.resize(look.mark);
        }
        const uint32_t begin = look.mark;  // of the loop, if it is one: excludes earlier loads
        look.state = state;
        look.mark = static_cast<uint32_t>(thread.touching.size());
        // A thread that has seen an older value and returns to its state might as well not have polled: other runs
        // cover that.
        const bool has_seen_older = thread.older_from > begin;
        if (has_seen_older && comes_back) {
            thread.older_from = -1;
            if (all_.give_up()) return m_.stop_request = 1;
        }
        if (is_new || !is_same || has_seen_older) return false;
        const bool counts_too_far = ++look.repeats >= all_.turns;
        if (!comes_back && !counts_too_far) return false;
        for (int i = 0; i < seen.num_loads; i++) {
            const PollSet::Seen& other = seen.loads[i];
            if (other.mark >= begin && read_raw(other.address, other.size) != other.value) return false;
        }
        if (!comes_back) has_counted_ = true;
        return true;
    }
    void only_looks(bool from_now_on) override {
        Thread& thread = thread_of(current);
        thread.only_looks_from = from_now_on ? static_cast<int64_t>(thread.touching.size()) : -1;
    }
    // A loop that stores between its polls (a heartbeat, statistics) never returns to its state. On a GPU other threads
    // run meanwhile, so after many polls of the same value a thread rests until the value changes.
    __attribute__((noinline)) void count_turn(const PollSet::Seen& look) {
        Thread& thread = thread_of(current);
        const uint64_t value = read_raw(look.address, look.size);
        auto turn = std::find_if(thread.turns.begin(), thread.turns.end(), [&](const Turn& t) {
            return t.address == look.address && t.size == look.size && t.pc == current->pc;
        });
        if (turn == thread.turns.end())
            turn = thread.turns.insert(turn, {look.address, current->pc, value, 0, look.size});
        if (std::exchange(turn->value, value) != value) turn->number = 0;
        if (++turn->number < all_.turns * Exploration::kBusy) return;
        thread.rests = static_cast<int>(turn - thread.turns.begin());
    }
    bool rests(int process) {
        Thread& thread = threads_[process];
        if (thread.rests < 0) return false;
        const Turn& turn = thread.turns[thread.rests];
        if (read_raw(turn.address, turn.size) == turn.value) return true;
        wake(process);
        thread.woken_by = is_frozen_ ? -1 : all_.last_event();
        return false;
    }
    void wake(int process) {
        Thread& thread = threads_[process];
        thread.turns[thread.rests].number = 0;
        thread.rests = -1;
    }
    int polls_per_clock() const override { return 1; }

    // Only a limit of time or of turns can end the waits: the rest is not explored.
    void stands_still() override {
        is_frozen_ = true;
        is_open_ = false;
    }
    uint64_t rounds_of_quiescence(uint64_t) const override { return kRoundsOfQuiescence; }

    // ---- NICs
    void posted(NetOp* op) override {
        Thread& thread = thread_of(current);
        Operation& record = operations_[op] = {};
        record.poster = all_.key_of(process_of_.at(current));
        record.which = ++thread.posts;
        record.is_calm = thread.is_calm;
        record.posted = is_open_ ? all_.last_event() : -1;
        record.link = link(op->source_rank, op->target_rank);
        record.number = op->number;
        record.queue_pair = op->queue_pair;
        if (op->copy) return;
        const bool keeps_order = m_.network->settings.kind == Fabric::kRc;
        touched(kLinks + record.link * kMaxQueuePairs + static_cast<size_t>(op->queue_pair), 1,
                keeps_order ? Touch::kWrite : Touch::kRead);
        touched(kQueues + static_cast<size_t>(op->source_rank), 1, Touch::kAdd);
    }
    void fenced(int rank, int queue_pair) override {
        const int source = current->block->launch->rank;
        for (int target = 0; target < m_.num_ranks; target++) {
            if (rank >= 0 && rank != target) continue;
            fences_[link(source, target)].push_back({m_.network->posted[source] + 1, queue_pair});
            for (int pair = 0; pair < m_.network->settings.queue_pairs; pair++)
                if (queue_pair < 0 || pair == queue_pair)
                    touched(kLinks + link(source, target) * kMaxQueuePairs + static_cast<size_t>(pair), 1,
                            Touch::kWrite);
        }
    }
    void quiet(int rank, int queue_pair) override {
        if (!is_open_) return;
        const int source = current->block->launch->rank;
        if (has_acted_) step_aside();
        if (!is_open_) return;
        for (const Operation& done : completed_) {
            if (done.poster[1] != source || (rank >= 0 && link(source, rank) != done.link)) continue;
            if (queue_pair < 0 || queue_pair == done.queue_pair) all_.event().after.push_back(done.ended);
        }
        touched(kQueues + static_cast<size_t>(source), 1, Touch::kRead);
    }

    // ---- time: it stands still while any event is possible
    double now_ns() const override { return now_ns_; }
    void spend(double) override {}
    void pass(double ns) override { now_ns_ += ns; }
    void drain() override {
        while (!m_.network->in_flight.empty() && !m_.stop_request && (advance(false) || skip_to_next_release(m_))) {
        }
    }

  private:
    static constexpr int64_t kQuantum = 1 << 14;  // accesses
    static constexpr double kLongLoopNs = 1e6;
    static constexpr uint64_t kRoundsOfQuiescence = 300;
    static constexpr size_t kMaxQueuePairs = 1024;
    static constexpr size_t kMostRead = 1 << 12;         // bytes of one access that are compared
    static constexpr uintptr_t kFirstAddress = 1 << 12;  // lower numbers name things other than memory

    struct Turn {  // the turns of a loop, counted by one of its polls
        uintptr_t address, pc;
        uint64_t value, number;  // number: how often it was seen
        uint8_t size;
    };
    struct Thread {
        Fiber* fiber = nullptr;
        std::vector<int> after;  // Event::after of its next event
        int woken_by = -1, all_before = 0, last_event = -1;
        int64_t posts = 0;
        std::vector<int> touching;  // its events that touched memory
        std::vector<Turn> turns;
        int rests = -1;                // index in `turns`: it rests until the value seen there has changed; -1: no rest
        int64_t only_looks_from = -1;  // it has only polled since this index of `touching`; -1: it does more
        int64_t older_from = -1;       // the index of `touching` at which it has read an older value; -1: it has not
        bool is_calm = false;
        bool has_lapped = false;  // it would repeat itself, so it waits until others have acted
    };
    struct RankState {
        std::vector<int> done;  // the last events of threads that have ended
        int all_before = 0;
    };
    struct Operation {
        Exploration::Key poster;
        int64_t which;
        int posted;
        size_t link;
        uint64_t number;
        int queue_pair;
        bool is_calm = false;
        std::vector<int> delivered;            // the events that have delivered parts of it
        std::map<int64_t, int> last_of_piece;  // the last event of each piece
        int ended = -1;
    };
    struct Fence {
        uint64_t number;
        int queue_pair;
    };
    struct Possible {
        int process;
        Fiber* fiber;  // null: an event of `op`
        NetOp* op;
        int64_t piece;  // the piece's offset; -1: the operation's end
    };

    const Exploration::Key& key_of(const Warp* warp) const { return all_.key_of(process_of_.at(&warp->lanes[0])); }
    Thread& thread_of(const Fiber* fiber) { return threads_[process_of_.at(fiber)]; }
    size_t link(int source, int target) const { return static_cast<size_t>(source * m_.num_ranks + target); }

    // A successful atomic in a loop that waits for it: its earlier polls were fruitless.
    __attribute__((noinline)) void ends_its_wait(uintptr_t address) {
        const PollSet& seen = *current->polls;
        for (int i = 0; i < seen.num_loads; i++)
            if (seen.loads[i].address == address && seen.loads[i].state == state_of_kernel()) all_.give_up();
    }

    void launched(const Launch& launch) {
        uint64_t hash = mix(launch.rank, std::hash<std::string>()(launch.kernel));
        for (const auto& dim : {launch.grid, launch.block}) hash = mix(mix(mix(hash, dim.x), dim.y), dim.z);
        hash = mix(hash, launch.dynamic_shared);
        for (size_t at = 0; at < launch.arg_bytes.size(); at += 8) {
            uint64_t word = 0;
            memcpy(&word, launch.arg_bytes.data() + at, std::min<size_t>(launch.arg_bytes.size() - at, 8));
            hash = mix(hash, meant(word));
        }
        all_.host_did(hash);
    }

    // A value that is equal in every run: heaps and arrays have other addresses each time. Other mapped memory is the
    // libraries'.
    uint64_t meant(uint64_t word) const {
        // A possible address: behind a program with a fixed place, or high up with everything else.
        const bool is_low = word >= 1ull << 22 && word < 1ull << 32, is_high = word >= 1ull << 40 && word < 1ull << 48;
        if (!is_low && !is_high) return word;
        const uint64_t in_heaps = word - reinterpret_cast<uintptr_t>(m_.heaps);
        if (in_heaps < m_.heaps_bytes) return kHeaps + in_heaps;
        unsigned char is_there;
        const uint64_t page = word & ~uint64_t{4095};
        return mincore(reinterpret_cast<void*>(page), 1, &is_there) ? word : kElsewhere;
    }

    // The place of an address in an array argument, which has another address in every run. 0: it is in none. Launches
    // that may run concurrently have no array in common.
    static uint64_t place_in_argument(const Launch& launch, uintptr_t address) {
        for (const Range& range : launch.ranges) {
            if (address < range.begin || address >= range.end) continue;
            for (size_t at = 0; at + 8 <= launch.arg_bytes.size(); at++) {
                uintptr_t pointer;
                memcpy(&pointer, launch.arg_bytes.data() + at, sizeof pointer);
                if (pointer < range.begin || pointer >= range.end) continue;
                const auto launched = static_cast<uint64_t>(launch.rank * 1021 + launch.ticket) & 0xff;
                return kElsewhere + ((launched << 6 | std::min<size_t>(at / 8, 63)) << 34) + (address - range.begin);
            }
        }
        return 0;
    }

    bool advance(bool with_threads) {
        gather(with_threads);
        if (possible_.empty()) return false;
        const Possible* next = &possible_.front();
        if (!is_frozen_) {
            enabled_.clear();
            for (const Possible& one : possible_) enabled_.push_back(one.process);
            const int process = all_.pick(enabled_, last_thread_);
            if (process < 0) {
                m_.stop_request = 1;
                return true;
            }
            while (next->process != process) next++;
            is_open_ = true;
        }
        has_acted_ = false;
        m_.picks++;
        if (next->fiber)
            run(*next);
        else
            move(*next);
        if (std::exchange(is_open_, false) && m_.fault == Fault::kNone && !m_.stop_request) look_for_a_lap(*next);
        return true;
    }

    // A run that has returned to a state can repeat for ever.
    void look_for_a_lap(const Possible& made) {
        const int event = all_.last_event();
        const bool is_gone = made.fiber && !process_of_.count(made.fiber);  // its block has ended
        const int begin = laps_.ended(event, made.fiber ? made.process : -1, is_gone ? nullptr : made.fiber);
        for (size_t process = 0; process < threads_.size(); process++)
            if (static_cast<int>(process) != made.process) threads_[process].has_lapped = false;
        if (begin < 0) return;
        std::set<int> ran;
        for (int i = begin; i <= event; i++) ran.insert(all_.events()[i].process);
        bool can_any = false, could_others = false;
        for (const Warp* warp : warps_)
            for (uint32_t rest = warp->runnable; rest; rest &= rest - 1) {
                can_any = true;
                could_others |= !ran.count(process_of_.at(&warp->lanes[__builtin_ctz(rest)]));
            }
        if (!can_any) return;  // all processes wait
        if (could_others) {
            for (const int process : ran)
                if (process < static_cast<int>(threads_.size())) threads_[process].has_lapped = true;
            return;
        }
        all_.came_back(begin);
        m_.livelock = livelock(begin, event, ran);
        m_.stop_request = 1;
    }
    std::string livelock(int begin, int event, const std::set<int>& ran) {
        pcs_.resize(event + 1);
        uint64_t outside = 0;
        for (const Rank& rank : m_.ranks)
            if (!rank.queue.empty()) outside += rank.queue.front()->num_blocks - rank.queue.front()->next_block;
        std::string out = "{\"after\":" + std::to_string(begin) + ",\"steps\":" + std::to_string(event + 1 - begin) +
                          ",\"outside\":" + std::to_string(outside) + ",\"threads\":[";
        for (const int process : ran) {
            const Fiber* fiber = process < static_cast<int>(threads_.size()) ? threads_[process].fiber : nullptr;
            if (!fiber) continue;  // a NIC
            out += (out.back() == '[' ? "{" : ",{") + thread(*fiber) + ",\"steps\":[";
            for (int i = begin; i <= event; i++)
                if (all_.events()[i].process == process)
                    out += (out.back() == '[' ? "{" : ",{") + place(*fiber, pcs_[i]) + "}";
            out += "]}";
        }
        return out + "]}";
    }

    // Gathers in the calm order: the running thread; then the network, the oldest first; then other threads.
    void gather(bool with_threads) {
        possible_.clear();
        for (const auto& owned : m_.network->in_flight) {
            NetOp& op = *owned;
            const Operation& record = operations_.at(&op);
            if (op.copy) {
                possible_.push_back({process_of(record, -1), nullptr, &op, -1});
                continue;
            }
            for (size_t i = 0; i < op.pieces.size(); i++)
                if (piece_can_move(m_, op, i)) {
                    const auto offset = static_cast<int64_t>(op.pieces[i].offset);
                    possible_.push_back({process_of(record, offset), nullptr, &op, offset});
                }
            if (end_can_move(m_, op)) possible_.push_back({process_of(record, -1), nullptr, &op, -1});
        }
        std::sort(possible_.begin(), possible_.end(), [&](const Possible& a, const Possible& b) {
            const auto &x = all_.key_of(a.process), &y = all_.key_of(b.process);
            return x[0] != y[0] ? x[0] > y[0] : x < y;
        });
        if (with_threads)
            for (Warp* warp : warps_) {
                if (m_.injected && has_stopped(m_, warp->block->launch->rank)) continue;
                for (uint32_t rest = warp->runnable; rest; rest &= rest - 1) {
                    Fiber* fiber = &warp->lanes[__builtin_ctz(rest)];
                    possible_.push_back({process_of_.at(fiber), fiber, nullptr, 0});
                }
            }
        if (possible_.size() < 2) return;
        let_others_run();
        const auto last = std::find_if(possible_.begin(), possible_.end(),
                                       [&](const Possible& one) { return one.process == last_thread_; });
        if (last != possible_.end()) std::rotate(possible_.begin(), last, last + 1);
    }

    // Resting threads continue if no other event is possible.
    void let_others_run() {
        const auto laps = std::stable_partition(possible_.begin(), possible_.end(), [&](const Possible& one) {
            return !one.fiber || !threads_[one.process].has_lapped;
        });
        if (laps != possible_.begin()) possible_.erase(laps, possible_.end());
        const auto begin = std::stable_partition(
            possible_.begin(), possible_.end(), [&](const Possible& one) { return !one.fiber || !rests(one.process); });
        if (begin == possible_.end()) return;
        if (begin != possible_.begin()) {
            if (!std::exchange(has_rested_, true)) all_.status.counted++;
            possible_.erase(begin, possible_.end());
        } else {
            for (const Possible& one : possible_) wake(one.process);
        }
    }

    int process_of(const Operation& op, int64_t piece) {
        const auto& p = op.poster;
        return all_.process_of({1 + op.which, p[1], p[2], p[3], p[4], piece < 0, piece});
    }

    void run(const Possible& next) {
        Fiber* fiber = next.fiber;
        Warp* warp = fiber->warp;
        Thread& thread = threads_[next.process];
        if (is_open_) {
            Exploration::Event& event = all_.event();
            event.after = std::move(thread.after);
            event.all_before = thread.all_before;
            event.is_calm = thread.is_calm;
            event.woken_by = std::exchange(thread.woken_by, -1);
            thread.after.clear();
            thread.last_event = all_.last_event();
            last_thread_ = next.process;
        }
        epemu_shared_base = warp->block->shared;
        warp->runnable &= ~(1u << fiber->lane);
        quantum = kQuantum;
        run_lane(m_, fiber);
        if (m_.fault == Fault::kNone) end_turn(m_, warp);
        if (std::exchange(has_counted_, false)) all_.status.counted++;
    }

    void move(const Possible& next) {
        NetOp& op = *next.op;
        Operation& record = operations_.at(&op);
        const int event = all_.last_event();
        if (is_open_) {
            all_.event().is_calm = record.is_calm;
            auto& after = all_.event().after;
            if (record.posted >= 0) after.push_back(record.posted);
            if (next.piece < 0) after.insert(after.end(), record.delivered.begin(), record.delivered.end());
        }
        if (op.copy) return move_copy(op);
        if (next.piece >= 0) {
            const auto piece = static_cast<size_t>(
                std::find_if(op.pieces.begin(), op.pieces.end(),
                             [&](const NetOp::Piece& p) { return static_cast<int64_t>(p.offset) == next.piece; }) -
                op.pieces.begin());
            if (!op.pieces[piece].data.empty()) {
                comes_after_earlier(op, record);
                record.delivered.push_back(event);
                deliveries_[record.link].push_back({record.number, record.queue_pair, event});
            }
            return move_piece(op, piece);
        }
        const bool completes = op.delivered;
        if (!completes) {
            comes_after_earlier(op, record);
            record.delivered.push_back(event);
            deliveries_[record.link].push_back({record.number, record.queue_pair, event});
            if (op.signal_op == EPEMU_SIGNAL_ADD && op.signal && m_.network->settings.stages_atomics())
                touched(kQueues + (1u << 20) + static_cast<size_t>(op.target_rank), 1, Touch::kWrite);
        }
        if (completes) {
            record.ended = event;
            if (is_open_) completed_.push_back(record);
            operations_.erase(&op);
        }
        move_end(m_, op);
    }
    void move_copy(NetOp& op) {
        if (!advance_copy(m_, op)) return;
        auto& ops = m_.network->in_flight;
        const auto at = std::find_if(ops.begin(), ops.end(), [&](const auto& other) { return other.get() == &op; });
        operations_.erase(&op);
        std::swap(*at, ops.back());
        ops.pop_back();
    }

    // Orders this operation after earlier ones of its queue pair, or before a fence.
    void comes_after_earlier(const NetOp& op, const Operation& record) {
        if (!is_open_) return;
        const bool keeps_order = m_.network->settings.kind == Fabric::kRc;
        for (const Delivery& earlier : deliveries_[record.link]) {
            if (earlier.number >= op.number) continue;
            bool waits = keeps_order && earlier.queue_pair == op.queue_pair;
            for (const Fence& fence : fences_[record.link])
                waits |= earlier.number < fence.number && fence.number <= op.number &&
                         (fence.queue_pair < 0 ||
                          (fence.queue_pair == op.queue_pair && fence.queue_pair == earlier.queue_pair));
            if (waits) all_.event().after.push_back(earlier.event);
        }
    }

    struct Delivery {
        uint64_t number;
        int queue_pair, event;
    };

    Exploration& all_;
    std::vector<Thread> threads_;  // by process
    std::vector<RankState> ranks_;
    std::unordered_map<const Fiber*, int> process_of_;
    std::vector<Warp*> warps_;
    std::unordered_map<const NetOp*, Operation> operations_;
    std::vector<Operation> completed_;
    std::map<size_t, std::vector<Fence>> fences_;         // by link
    std::map<size_t, std::vector<Delivery>> deliveries_;  // by link
    std::vector<Possible> possible_;
    std::vector<int> enabled_;
    int last_thread_ = -1;
    double now_ns_ = 0;
    bool is_open_ = false;    // an event is in progress
    bool has_acted_ = false;  // the event has acted visibly to others
    Laps laps_;
    std::vector<uintptr_t> pcs_;  // by event: the place of the thread's visible action
    bool is_frozen_ = false, has_counted_ = false, has_rested_ = false;
};

}  // namespace
}  // namespace epemu

using namespace epemu;

// Starts the next run on this machine; call before the first launch.
extern "C" void epemu_explore_begin(Exploration* exploration, Machine* m) {
    with_memory([&] { m->schedule = std::make_unique<Exhaustive>(*m, *exploration); });
}

// The scheduler: which blocks are resident, which threads are parked, and the loop that takes one turn after another
// from the schedule until an awaited launch is finished, no thread can run, or a stop is requested.
#include <sched.h>
#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "fault_injection.hpp"
#include "machine.hpp"
#include "recorder.hpp"
#include "virtual_time.hpp"

extern "C" {
char* epemu_shared_base;
}

namespace epemu {
namespace {

// ---- blocks become resident ---------------------------------------------------------------------------------------
//
// A GPU makes as many blocks resident as fit. Here each resident thread has a stack and state of its own, and running
// 132 x 1,024 of them in turn misses the cache each time. So a block is admitted only if
//
// - its rank has no other, or fewer than kCrowdThreads threads are resident in all;
// - or every resident thread waits or polls (blocks may wait for each other, so a deadlock is reported only after as
//   much of a grid is resident as fits on a GPU);
// - or the resident ones have synchronised for long and none of their blocks has ended: a loop that changes memory
//   while it waits never parks.
//
// Under the checker all blocks that fit are admitted, so that it sees them overlap; virtual time has blocks on all SMs.
//
// So without the checker, a schedule interleaves the blocks of a large grid less than a GPU does, unless they wait for
// each other: use the checker to find races between blocks.
constexpr size_t kCrowdThreads = 1024;
constexpr int64_t kPatience = 1 << 16, kLeastPatience = 1 << 10;  // synchronising operations; halved each time
constexpr int64_t kPatienceOfYield = 16, kPatienceOfQuantum = 256;
constexpr int64_t kUnlimited = INT64_MAX / 2;
constexpr size_t kSpareBlocks = 32, kSpareThreads = 4096;

bool admits_all(const Machine& m) { return m.checker || m.schedule->needs_all_blocks(); }

bool can_admit(const Machine& m, const Rank& rank) {
    if (rank.queue.empty()) return false;
    const Launch& launch = *rank.queue.front();
    const size_t threads = launch.block.x * launch.block.y * launch.block.z;
    return launch.next_block < launch.num_blocks && !m.free_slots.empty() && !has_stopped(m, launch.rank) &&
           (rank.resident_threads == 0 || rank.resident_threads + threads <= m.settings.max_resident_threads) &&
           (!m.settings.max_resident_blocks || rank.resident_blocks < m.settings.max_resident_blocks);
}

// Reuses an ended block as the next one, while its data is still in the cache.
std::unique_ptr<Block> make_block(Machine& m, const epemu_dim3& dim) {
    const size_t threads = dim.x * dim.y * dim.z;
    std::unique_ptr<Block> block;
    if (!m.spare_blocks.empty() && m.spare_blocks.back()->has_shape(dim)) {
        block = std::move(m.spare_blocks.back());
        m.spare_blocks.pop_back();
        for (Warp& warp : block->warps) warp.begin_again();
        for (Fiber& fiber : block->fibers) fiber.begin_again();
        return block;
    }
    m.spare_blocks.clear();
    block = std::make_unique<Block>();
    block->dim = dim;
    block->fibers = decltype(block->fibers)(threads);
    block->warps = std::vector<Warp>((threads + kWarpSize - 1) / kWarpSize);
    epemu_dim3 thread = {0, 0, 0};
    for (size_t t = 0; t < threads; t++) {
        Fiber& f = block->fibers[t];
        f.block = block.get();
        f.warp = &block->warps[t / kWarpSize];
        f.thread = thread;
        f.lane = t % kWarpSize;
        f.what = "";
        if (++thread.x == dim.x) {
            thread.x = 0;
            if (++thread.y == dim.y) {
                thread.y = 0;
                thread.z++;
            }
        }
    }
    for (size_t w = 0; w < block->warps.size(); w++) {
        Warp& warp = block->warps[w];
        warp.block = block.get();
        warp.lanes = &block->fibers[w * kWarpSize];
        warp.num_lanes = std::min<size_t>(kWarpSize, threads - w * kWarpSize);
    }
    return block;
}

void admit(Machine& m, Launch* launch) {
    const uint64_t id = launch->next_block++;
    std::unique_ptr<Block> block = make_block(m, launch->block);
    block->launch = launch;
    block->index = {static_cast<unsigned>(id % launch->grid.x),
                    static_cast<unsigned>(id / launch->grid.x % launch->grid.y),
                    static_cast<unsigned>(id / launch->grid.x / launch->grid.y)};
    block->num_threads = block->live = static_cast<int>(block->fibers.size());
    block->arrived = block->barrier_count = 0;
    std::fill(std::begin(block->warps_of_named), std::end(block->warps_of_named), 0);
    block->id = m.blocks_created++;
    block->slot = m.free_slots.back();
    m.free_slots.pop_back();
    block->shared = m.shared_area + block->slot * kSharedSlotBytes;
    block->shared_bytes = launch->static_shared + launch->dynamic_shared;
    memset(block->shared, 0xa5, block->shared_bytes);  // so that no kernel relies on zeros in shared memory
    m.schedule->admitted(block.get());
    for (Warp& warp : block->warps) m.schedule->ready(&warp, ~0u >> (kWarpSize - warp.num_lanes));
    if (checker) checker->admitted(block.get());
    Rank& rank = m.ranks[launch->rank];
    if (!launch->is_service) {
        rank.resident_threads += block->num_threads;
        rank.resident_blocks++;
        m.resident_threads += block->num_threads;
    }
    m.resident.push_back(std::move(block));
    m.most_resident_blocks = std::max(m.most_resident_blocks, m.resident.size());
    m.progress++;
}

// Called at the start, and when a block has ended.
void refill(Machine& m) {
    const bool all = admits_all(m);
    for (Rank& rank : m.ranks)
        for (auto& service : rank.services)
            while (service->next_block < service->num_blocks && !m.free_slots.empty()) admit(m, service.get());
    for (Rank& rank : m.ranks)
        while (can_admit(m, rank) && (all || rank.resident_threads == 0)) admit(m, rank.queue.front().get());
    for (bool any = true; any;) {
        any = false;
        for (Rank& rank : m.ranks) {
            if (m.resident_threads >= kCrowdThreads || !can_admit(m, rank)) continue;
            admit(m, rank.queue.front().get());
            any = true;
        }
    }
    m.patience = m.full_patience = all ? kUnlimited : kPatience;
}

// Admits a quarter more blocks on each rank, at least one. Returns whether it admitted any.
bool admit_more(Machine& m) {
    bool any = false;
    for (Rank& rank : m.ranks)
        for (size_t n = std::max<size_t>(1, rank.resident_blocks / 4); n > 0 && can_admit(m, rank); n--) {
            admit(m, rank.queue.front().get());
            any = true;
        }
    m.patience = any ? m.full_patience : kUnlimited;
    return any;
}

void finish_block(Machine& m, Block* block) {
    Launch* launch = block->launch;
    Rank& rank = m.ranks[launch->rank];
    finish_copies(m, block);
    if (checker) checker->finished(block, launch->finished_blocks + 1 == launch->num_blocks);
    m.schedule->finished(block);
    if (!launch->is_service) {
        rank.resident_threads -= block->num_threads;
        rank.resident_blocks--;
        m.resident_threads -= block->num_threads;
    }
    m.free_slots.push_back(block->slot);
    auto it = std::find_if(m.resident.begin(), m.resident.end(), [&](const auto& b) { return b.get() == block; });
    std::swap(*it, m.resident.back());
    if (m.spare_blocks.size() < kSpareBlocks && (m.spare_blocks.size() + 1) * block->num_threads <= kSpareThreads) {
        block->check.reset();
        m.spare_blocks.push_back(std::move(m.resident.back()));
    }
    m.resident.pop_back();
    if (++launch->finished_blocks == launch->num_blocks && !launch->is_service) {
        rank.done_ticket = launch->ticket;
        rank.queue.pop_front();
    }
    refill(m);
}

// ---- polling threads are parked -----------------------------------------------------------------------------------

// Wakes polling fibers: those whose values changed unseen (by plain stores), those that read the clock, or all. In
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
            if (changed) p.num_loads = 0;  // wake it once: it may never poll there again
            if (changed || (!only_changed && (!only_clock || p.used_clock))) {
                m.schedule->woke(&fiber);
                woken++;
            } else {
                park(&fiber);
            }
        }
    return woken;
}

// ---- a world of several processes -----------------------------------------------------------------------------------

// Lets this rank's host queue launches and similar work between two turns.
void let_hosts_in(Machine& m) {
    while (m.hosts_asking) {
        m.host_lock.unlock();
        sched_yield();
        m.host_lock.lock();
    }
}

void look_at_polls(Machine& m, Schedule::Look look) {
    if (look == Schedule::Look::kNothing || !m.num_parked) return;
    unpark_if(m, true, false);
    if (look == Schedule::Look::kAll) unpark_if(m, false, false);
}

void wait_for_others(Machine& m) {
    m.host_lock.unlock();
    const Schedule::Look look = m.schedule->wait();
    m.host_lock.lock();
    look_at_polls(m, look);
}

// Decides what to do when no warp is runnable: whether bounded loops and time limits can still change something.
class Quiescence {
  public:
    explicit Quiescence(Machine& m) : m_(m) {}

    // Returns false if no thread can ever continue.
    bool resolve();

  private:
    bool has_returned();

    static constexpr uint64_t kWork = 2000000, kRoundsPerStep = 64, kForeverNs = 1000000000ull * 100000;
    static constexpr uint64_t kRoundsWatched = 1024, kLooksAtClock = 16;  // of a thread in a round, while time stands
    Machine& m_;
    uint64_t progress_ = ~0ull, rounds_ = 0, step_ns_ = 1000;
    uint64_t state_ = 0, kept_until_ = 0;  // of the threads after an earlier round, and the round that is kept next
};

bool awaited_done(const Machine& m, const int64_t* awaited) {
    bool any = false;
    for (int r = 0; r < m.num_ranks; r++) {
        if (!awaited[r]) continue;
        if (m.ranks[r].done_ticket >= awaited[r]) return true;
        any = true;
    }
    return !any;
}

// Whether all services wait for work, or for operations that never arrive. Services of a stopped rank count as waiting.
bool services_idle(const Machine& m) {
    for (const auto& block : m.resident) {
        if (!block->launch->is_service || has_stopped(m, block->launch->rank)) continue;
        for (const Fiber& fiber : block->fibers) {
            if (fiber.state == State::kRunnable) return false;
            for (int i = 0; fiber.state == State::kPolling && i < fiber.polls->num_loads; i++) {
                const auto& load = fiber.polls->loads[i];
                if (read_raw(load.address, load.size) != load.value) return false;
            }
        }
    }
    return true;
}

bool is_drained(Machine& m) {
    if (!services_idle(m)) return false;
    m.schedule->drain();
    return services_idle(m);
}

// Whether a format has a %n, by which the C library would write into the kernel's memory.
bool has_percent_n(const char* format) {
    while ((format = strchr(format, '%')) != nullptr) {
        format++;
        format += strspn(format, "-+ #0123456789.*$'hlLqjzt");
        if (*format == 'n') return true;
        if (*format != '\0') format++;
    }
    return false;
}

void print(Machine& m, Fiber* fiber) {
    char text[4096];
    bool writes = false;
    const bool is_there = is_text_there([&] {
        writes = has_percent_n(fiber->format);
        if (!writes) vsnprintf(text, sizeof text, fiber->format, *fiber->format_args);
    });
    if (!is_there || writes) {
        m.fault = writes ? Fault::kTrap : Fault::kSignal;
        m.faulting = fiber;
        m.fault_pc = fiber->pc;
        m.fault_address = 0;
        m.fault_text = writes ? "prints with %n, which GPUs do not have" : "prints a text (%s) that is not there";
        return;
    }
    std::lock_guard<std::mutex> guard(m.output_lock);
    m.output += text;
    m.progress++;
}

}  // namespace

// Whether all polling threads are in the state that they had after an earlier round: as nothing has happened since, not
// even time has passed, they will be again and again (Brent, 1980: the state of ever later rounds is kept).
bool Quiescence::has_returned() {
    if (rounds_ == 0 || !m_.time_stands()) return false;
    uint64_t state = m_.num_parked;
    for (const auto& block : m_.resident)
        for (const Fiber& fiber : block->fibers)
            if (fiber.state == State::kPolling) state = (state ^ fiber.polls->state) * 0x9e3779b97f4a7c15ull;
    if (rounds_ > 1 && state == state_) return true;
    if (rounds_ >= kept_until_) {
        state_ = state;
        kept_until_ = 2 * rounds_;
    }
    return false;
}

bool Quiescence::resolve() {
    if (m_.progress != progress_) {
        progress_ = m_.progress;
        rounds_ = kept_until_ = 0;
        step_ns_ = 1000;
    }
    if (!m_.num_parked) return skip_to_next_release(m_);
    // Loops with a bounded number of polls end by themselves: let all of them iterate some more times.
    uint64_t fibers = 0;
    for (const auto& block : m_.resident) fibers += block->num_threads;
    m_.schedule->stands_still();
    const uint64_t limit = m_.schedule->rounds_of_quiescence(std::clamp<uint64_t>(kWork / fibers, 50, 100000));
    if (rounds_ < limit && !has_returned()) {
        rounds_++;
        m_.still_at = m_.progress;
        m_.still_for = rounds_ < kRoundsWatched ? kLooksAtClock * m_.num_parked : 0;
        return unpark_if(m_, false, false) > 0;
    }
    m_.still_for = 0;
    // Loops that read the clock, perhaps every hundredth iteration, end when enough time has passed.
    rounds_ = std::max(rounds_, limit);
    if (rounds_++ == limit) note_quiescence(m_);
    if (step_ns_ < kForeverNs) {
        if (rounds_ % kRoundsPerStep == 0) step_ns_ *= 2;
        const auto step = static_cast<double>(step_ns_ / kRoundsPerStep);
        m_.schedule->pass(std::min(step, static_cast<double>(next_release_ns(m_)) - m_.schedule->now_ns()));
        return unpark_if(m_, false, true) > 0 || skip_to_next_release(m_);
    }
    return skip_to_next_release(m_);
}

void park(Fiber* fiber) {
    machine->num_parked++;
    for (int i = 0; i < fiber->polls->num_loads; i++)
        machine->parked[fiber->polls->loads[i].address / 8].push_back(fiber);
}

void wake(uintptr_t address, size_t bytes) {
    if (!machine->num_parked) return;
    auto& parked = machine->parked;
    for (auto it = parked.lower_bound(address / 8); it != parked.end() && it->first * 8 < address + bytes;) {
        const std::vector<Fiber*> fibers = std::move(it->second);
        it = parked.erase(it);
        for (Fiber* fiber : fibers) {
            if (fiber->state != State::kPolling) continue;  // it polled this word twice
            machine->num_parked--;
            for (int i = 0; i < fiber->polls->num_loads; i++) {
                auto other = parked.find(fiber->polls->loads[i].address / 8);
                if (other == parked.end()) continue;
                auto& list = other->second;
                list.erase(std::remove(list.begin(), list.end(), fiber), list.end());
            }
            machine->schedule->woke(fiber);
        }
    }
}

void run_lane(Machine& m, Fiber* fiber) {
    fiber = switch_to(fiber);  // possibly a later lane now
    if (m.fault != Fault::kNone) return;
    if (fiber->state == State::kPrinting) {
        print(m, fiber);
        if (m.fault != Fault::kNone) return;
        fiber->state = State::kRunnable;
    }
    if (fiber->state == State::kRunnable) {
        make_runnable(fiber);
    } else if (fiber->state == State::kDone) {
        retire(fiber);
    }
}

void end_turn(Machine& m, Warp* warp) {
    if (warp->in_activemask && !warp->runnable) resolve_activemask(warp);
    if (warp->block->live == 0) finish_block(m, warp->block);
}

void make_runnable(Fiber* fiber) { machine->schedule->ready(fiber->warp, 1u << fiber->lane); }

void block_current(State state, const char* what, uintptr_t pc) {
    current->state = state;
    current->what = what;
    current->pc = pc;
    switch_to_scheduler();
}

void step_aside() {
    current->state = State::kRunnable;
    switch_to_scheduler();
}

void yield() {
    machine->patience -= kPatienceOfYield;
    machine->schedule->yield();
}

void preempt() {
    machine->patience -= kPatienceOfQuantum;
    machine->schedule->preempt();
}

void maybe_preempt() {
    machine->steps++;
    if (--machine->patience < 0) return step_aside();  // so that the scheduler admits more blocks
    machine->schedule->synchronise();
}

void retire(Fiber* fiber) {
    if (__builtin_expect(recorder != nullptr, 0)) recorder->ended(*fiber);
    machine->progress++;
    Block* block = fiber->block;
    fiber->warp->exited |= 1u << fiber->lane;
    fiber->polls.reset();
    release_stack(fiber, machine->settings.stack_bytes);
    block->live--;
    if (fiber->warp->arrived) warp_ops_maybe_complete(fiber->warp);
    if (block->live) barrier_maybe_complete(block);
    if (!block->named.empty()) named_barriers_maybe_complete(block);
}

Outcome run(Machine& m, const int64_t* awaited) {
    machine = &m;
    checker = m.checker.get();
    recorder = m.recorder.get();
    timed = m.time;
    std::unique_lock<std::mutex> held(m.host_lock);
    m.runs++;
    Quiescence quiescence(m);
    refill(m);
    Outcome outcome = Outcome::kDone;
    while (awaited ? !awaited_done(m, awaited) : !is_drained(m)) {
        if (m.stop_request) {
            outcome = Outcome::kStopped;
            break;
        }
        if (m.patience < 0) {
            m.full_patience = std::max(kLeastPatience, m.full_patience / 2);
            admit_more(m);
        }
        if (m.has_other_processes()) {
            let_hosts_in(m);
            look_at_polls(m, m.schedule->look());
        }
        if (m.schedule->step()) {
            if (m.fault == Fault::kNone) continue;
            outcome = Outcome::kFault;
            break;
        }
        if (unpark_if(m, true, false) || admit_more(m)) continue;
        if (m.has_other_processes()) {
            wait_for_others(m);
            continue;
        }
        if (quiescence.resolve()) continue;
        outcome = Outcome::kDeadlock;
        break;
    }
    if (outcome != Outcome::kDone) write_report(m, outcome);
    return outcome;
}

}  // namespace epemu

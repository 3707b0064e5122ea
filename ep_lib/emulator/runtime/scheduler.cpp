// The scheduler: a seeded random walk over the runnable warps of all ranks, or priorities (pct.hpp), until an awaited
// launch is finished, nothing can go on, or someone asks it to stop.
#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "fault_injection.hpp"
#include "pct.hpp"
#include "virtual_time.hpp"

extern "C" {
char* epemu_shared_base;
}

namespace epemu {
namespace {

// A preempted fiber usually runs on for long; now and then it stops after a few accesses, wherever that is.
constexpr int64_t kLongQuantum = 1 << 14;
constexpr uint32_t kShortQuantumOneIn = 16, kShortQuantum = 256;
constexpr uint32_t kLongestStall = 8;  // as a power of two, in turns of everybody
constexpr size_t kCrowd = 2048;        // runnable warps from which on their lanes stay together: order enough
constexpr int kTries = 4;              // picks before a stalled warp runs after all

void admit(Machine& m, Launch* launch) {
    const uint64_t id = launch->next_block++;
    const int threads = launch->block.x * launch->block.y * launch->block.z;
    auto block = std::make_unique<Block>();
    block->launch = launch;
    block->index = {static_cast<unsigned>(id % launch->grid.x),
                    static_cast<unsigned>(id / launch->grid.x % launch->grid.y),
                    static_cast<unsigned>(id / launch->grid.x / launch->grid.y)};
    block->num_threads = block->live = threads;
    block->id = m.blocks_created++;
    block->slot = m.free_slots.back();
    m.free_slots.pop_back();
    block->shared = m.shared_area + block->slot * kSharedSlotBytes;
    block->shared_bytes = launch->static_shared + launch->dynamic_shared;
    memset(block->shared, 0xa5, block->shared_bytes);  // nobody may rely on zeros in shared memory
    block->fibers = std::vector<Fiber>(threads);
    block->warps = std::vector<Warp>((threads + kWarpSize - 1) / kWarpSize);
    const epemu_dim3 dim = launch->block;
    for (int t = 0; t < threads; t++) {
        Fiber& f = block->fibers[t];
        f.block = block.get();
        f.warp = &block->warps[t / kWarpSize];
        f.thread = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
        f.lane = t % kWarpSize;
        f.what = "";
    }
    if (timed) timed->admitted(block.get());
    for (size_t w = 0; w < block->warps.size(); w++) {
        Warp& warp = block->warps[w];
        warp.block = block.get();
        warp.lanes = &block->fibers[w * kWarpSize];
        if (m.pct) warp.priority = m.pct->fresh_priority();
        warp.num_lanes = std::min<int>(kWarpSize, threads - w * kWarpSize);
        for (int lane = 0; lane < warp.num_lanes; lane++) make_runnable(&warp.lanes[lane]);
    }
    if (checker) checker->admitted(block.get());
    m.ranks[launch->rank].resident_threads += threads;
    m.resident.push_back(std::move(block));
    m.progress++;
}

// Makes blocks resident as far as the limits allow, as a GPU does. Returns whether any was admitted.
bool admit_blocks(Machine& m) {
    bool any = false;
    for (auto& rank : m.ranks) {
        if (rank.queue.empty() || has_stopped(m, rank.queue.front()->rank)) continue;
        Launch* launch = rank.queue.front().get();
        const size_t threads = launch->block.x * launch->block.y * launch->block.z;
        while (launch->next_block < launch->num_blocks && !m.free_slots.empty() &&
               (rank.resident_threads == 0 || rank.resident_threads + threads <= m.settings.max_resident_threads)) {
            admit(m, launch);
            any = true;
        }
    }
    return any;
}

void finish_block(Machine& m, Block* block) {
    Launch* launch = block->launch;
    Rank& rank = m.ranks[launch->rank];
    if (checker) checker->finished(block, launch->finished_blocks + 1 == launch->num_blocks);
    if (timed) timed->finished(block);
    rank.resident_threads -= block->num_threads;
    m.free_slots.push_back(block->slot);
    auto it = std::find_if(m.resident.begin(), m.resident.end(), [&](const auto& b) { return b.get() == block; });
    std::swap(*it, m.resident.back());
    m.resident.pop_back();
    if (++launch->finished_blocks == launch->num_blocks) {
        rank.done_ticket = launch->ticket;
        rank.queue.pop_front();
    }
    admit_blocks(m);
}

bool awaited_done(const Machine& m, const int64_t* awaited) {
    bool any = false;
    for (int r = 0; r < m.num_ranks; r++) {
        if (!awaited[r]) continue;
        if (m.ranks[r].done_ticket >= awaited[r]) return true;
        any = true;
    }
    return !any;
}

void print(Machine& m, Fiber* fiber) {
    char text[4096];
    vsnprintf(text, sizeof text, fiber->format, *fiber->format_args);
    std::lock_guard<std::mutex> guard(m.output_lock);
    m.output += text;
    m.progress++;
}

// Anyone, if possible not one that is stalled.
uint32_t random_warp(Machine& m) {
    uint32_t pick = m.random.below(m.run_queue.size());
    for (int i = 0; i < kTries && m.run_queue[pick]->stalled_until > m.picks; i++)
        pick = m.random.below(m.run_queue.size());
    return pick;
}

// Runs every runnable lane of a warp once, in a random rotation.
void run_warp(Machine& m, Warp* warp) {
    epemu_shared_base = warp->block->shared;
    uint32_t lanes = warp->runnable, later = 0;
    if (m.run_queue.size() < kCrowd && m.random.below(m.parameters.split_one_in) == 0) {
        const uint32_t some = lanes & static_cast<uint32_t>(m.random.next() >> 32);
        if (some) {
            later = lanes & ~some;
            lanes = some;
        }
    }
    warp->runnable = 0;
    for (uint32_t rest = later; rest; rest &= rest - 1) make_runnable(&warp->lanes[__builtin_ctz(rest)]);
    const uint32_t first = m.random.below(kWarpSize);
    for (uint32_t i = 0; i < kWarpSize; i++) {
        const uint32_t lane = (first + i) % kWarpSize;
        if (!(lanes >> lane & 1)) continue;
        if (m.pct && m.pct->outranked(warp)) {
            make_runnable(&warp->lanes[lane]);
            continue;
        }
        if (has_stopped(m, warp->block->launch->rank)) continue;
        Fiber* fiber = &warp->lanes[lane];
        quantum = m.pct || m.random.below(kShortQuantumOneIn) ? kLongQuantum : 1 + m.random.below(kShortQuantum);
        run_lane(m, fiber);
        if (m.fault != Fault::kNone) return;
    }
    end_turn(m, warp);
}

// Wakes polling fibers: those whose values changed unseen (by plain stores), those that look at the clock, or all. In
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
            if (changed) p.num_loads = 0;  // it may never look there again, and must not be woken for it again
            if (changed || (!only_changed && (!only_clock || p.used_clock))) {
                if (timed) timed->woke(&fiber);
                make_runnable(&fiber);
                woken++;
            } else {
                park(&fiber);
            }
        }
    return woken;
}

// What happens when no warp is runnable: is it over, or do bounded loops and time limits still change something?
class Quiescence {
  public:
    explicit Quiescence(Machine& m) : m_(m) {}

    // Returns false when nothing can ever go on.
    bool resolve();

  private:
    static constexpr uint64_t kWork = 2000000, kRoundsPerStep = 64, kForeverNs = 1000000000ull * 100000;
    Machine& m_;
    uint64_t progress_ = ~0ull, rounds_ = 0, step_ns_ = 1000;
};

}  // namespace

bool Quiescence::resolve() {
    if (unpark_if(m_, true, false)) return true;
    if (m_.progress != progress_) {
        progress_ = m_.progress;
        rounds_ = 0;
        step_ns_ = 1000;
    }
    if (!m_.num_parked) return skip_to_next_release(m_);
    // Loops with a bounded number of polls end by themselves: let everyone go round some more times.
    uint64_t fibers = 0;
    for (const auto& block : m_.resident) fibers += block->num_threads;
    const uint64_t limit = std::clamp<uint64_t>(kWork / fibers, 50, 100000);
    if (rounds_++ < limit) return unpark_if(m_, false, false) > 0;
    // Loops that look at the clock, perhaps every hundredth time, end when enough time has passed.
    if (step_ns_ < kForeverNs) {
        if (rounds_ % kRoundsPerStep == 0) step_ns_ *= 2;
        m_.now_ns = std::min(m_.now_ns + step_ns_ / kRoundsPerStep, next_release_ns(m_));
        if (timed) timed->passed(static_cast<double>(step_ns_ / kRoundsPerStep));
        return unpark_if(m_, false, true) > 0 || skip_to_next_release(m_);
    }
    return skip_to_next_release(m_);
}

void park(Fiber* fiber) {
    machine->num_parked++;
    for (int i = 0; i < fiber->polls->num_loads; i++)
        machine->parked[fiber->polls->loads[i].address / 8].push_back(fiber);
}

void wake(uintptr_t address) {
    if (!machine->num_parked) return;
    auto it = machine->parked.find(address / 8);
    if (it == machine->parked.end()) return;
    const std::vector<Fiber*> fibers = std::move(it->second);
    machine->parked.erase(it);
    for (Fiber* fiber : fibers) {
        if (fiber->state != State::kPolling) continue;  // it looked twice at this word
        machine->num_parked--;
        for (int i = 0; i < fiber->polls->num_loads; i++) {
            auto other = machine->parked.find(fiber->polls->loads[i].address / 8);
            if (other == machine->parked.end()) continue;
            auto& list = other->second;
            list.erase(std::remove(list.begin(), list.end(), fiber), list.end());
        }
        if (timed) timed->woke(fiber);
        make_runnable(fiber);
    }
}

void run_lane(Machine& m, Fiber* fiber) {
    switch_to(fiber);
    if (m.fault != Fault::kNone) return;
    if (fiber->state == State::kPrinting) {
        print(m, fiber);
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

void make_runnable(Fiber* fiber) {
    if (timed) return timed->ready(fiber);
    fiber->state = State::kRunnable;
    Warp* warp = fiber->warp;
    if (!warp->runnable) {
        warp->queue_index = machine->run_queue.size();
        machine->run_queue.push_back(warp);
        if (machine->pct) machine->pct->woke(warp);
    }
    warp->runnable |= 1u << fiber->lane;
}

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
    if (machine->pct) machine->pct->fall_behind(current->warp);
    step_aside();
}

void preempt() {
    if (timed) return yield();
    Machine& m = *machine;
    if (!m.pct && m.random.below(m.parameters.stall_one_in) == 0) {
        // From a turn of everybody to a hundred turns: long enough for others to finish what they are at.
        const uint64_t turn = m.run_queue.size() + 1;
        current->warp->stalled_until = m.picks + (turn << m.random.below(kLongestStall));
    }
    yield();
}

void maybe_preempt() {
    if (timed) return timed->synchronise();
    if (machine->pct) return machine->pct->synchronised(current->warp);
    if (machine->random.below(machine->parameters.preempt_one_in) == 0) preempt();
}

void retire(Fiber* fiber) {
    machine->progress++;
    Block* block = fiber->block;
    fiber->warp->exited |= 1u << fiber->lane;
    fiber->polls.reset();
    release_stack(fiber, machine->settings.stack_bytes);
    block->live--;
    if (block->live) barrier_maybe_complete(block);
}

Outcome run(Machine& m, const int64_t* awaited) {
    machine = &m;
    checker = m.checker.get();
    timed = m.time.get();
    Quiescence quiescence(m);
    admit_blocks(m);
    Outcome outcome = Outcome::kDone;
    while (!awaited_done(m, awaited)) {
        if (m.stop_request) {
            outcome = Outcome::kStopped;
            break;
        }
        if (timed && timed->step()) {
            if (m.fault == Fault::kNone) continue;
            outcome = Outcome::kFault;
            break;
        }
        const bool traffic = !timed && !m.network->in_flight.empty();
        if (traffic && m.pct && m.pct->move_network()) continue;
        if (traffic && !m.pct && !m.run_queue.empty() && m.random.below(m.parameters.deliver_one_in) == 0)
            network_step(m);
        if (m.run_queue.empty()) {
            if (traffic && !m.pct && network_step(m)) continue;
            if (admit_blocks(m) || quiescence.resolve()) continue;
            outcome = Outcome::kDeadlock;
            break;
        }
        m.picks++;
        const size_t pick = m.pct ? m.pct->highest_warp() : random_warp(m);
        Warp* warp = m.run_queue[pick];
        m.run_queue[pick] = m.run_queue.back();
        m.run_queue[pick]->queue_index = pick;
        m.run_queue.pop_back();
        m.now_ns += 1;
        run_warp(m, warp);
        if (m.fault != Fault::kNone) {
            outcome = Outcome::kFault;
            break;
        }
    }
    if (outcome != Outcome::kDone) write_report(m, outcome);
    machine = nullptr;
    checker = nullptr;
    timed = nullptr;
    return outcome;
}

}  // namespace epemu

// CUDA's built-in functions that need the runtime: barriers, warp-wide operations, __activemask, clocks, printf, trap.
#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <utility>

#include "checker.hpp"
#include "machine.hpp"
#include "virtual_time.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr const char* kWarpOpNames[] = {
    "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
    "__shfl_down_sync",  "__shfl_xor_sync",   "a vote (__any_sync, __all_sync or __ballot_sync)",
    "__match_any_sync",  "__match_all_sync",  "__reduce_add_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
    "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
    "__reduce_xor_sync",
};
constexpr const char* kBarrierNames[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and",
                                         "__syncthreads_or"};

template <class F>
void for_each_lane(const Warp* warp, uint32_t mask, F f) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) f(warp->lanes[__builtin_ctz(rest)]);
}

// The lane whose value a shuffle gives to `lane`.
int shuffle_source(int op, int lane, int arg, int width) {
    const int segment = lane & ~(width - 1), last = segment + width - 1;
    int source = lane;
    switch (op) {
        case EPEMU_SHFL: source = segment + (arg & (width - 1)); break;
        case EPEMU_SHFL_UP: source = lane - arg < segment ? lane : lane - arg; break;
        case EPEMU_SHFL_DOWN: source = lane + arg > last ? lane : lane + arg; break;
        case EPEMU_SHFL_XOR:
            // In CUDA, xor may reach an earlier segment, but not a later one.
            source = (lane ^ arg) > last ? lane : (lane ^ arg);
            break;
    }
    return source & (kWarpSize - 1);
}

uint32_t reduce(const Warp* warp, uint32_t mask, int op) {
    bool first = true;
    uint32_t total = 0;
    for_each_lane(warp, mask, [&](const Fiber& f) {
        const auto v = static_cast<uint32_t>(f.value);
        const auto sv = static_cast<int32_t>(v), st = static_cast<int32_t>(total);
        if (first) {
            total = v;
        } else {
            switch (op) {
                case EPEMU_REDUCE_ADD: total += v; break;
                case EPEMU_REDUCE_MIN_U32: total = v < total ? v : total; break;
                case EPEMU_REDUCE_MAX_U32: total = v > total ? v : total; break;
                case EPEMU_REDUCE_MIN_S32: total = sv < st ? v : total; break;
                case EPEMU_REDUCE_MAX_S32: total = sv > st ? v : total; break;
                case EPEMU_REDUCE_AND: total &= v; break;
                case EPEMU_REDUCE_OR: total |= v; break;
                case EPEMU_REDUCE_XOR: total ^= v; break;
            }
        }
        first = false;
    });
    return total;
}

// A mask in words: "lane 3", "lanes 20 to 31".
std::string lanes_text(uint32_t mask) {
    std::string text = mask & (mask - 1) ? "lanes " : "lane ";
    for (int begin = 0, end; begin < kWarpSize; begin = end + 1) {
        for (end = begin; end < kWarpSize && mask >> end & 1; end++) continue;
        if (end == begin) continue;
        text += (text.back() == ' ' ? "" : ", ") + std::to_string(begin) +
                (end - begin > 1 ? " to " + std::to_string(end - 1) : "");
    }
    return text;
}

// A lane reads from a lane that takes no part in the shuffle.
void no_source(const Warp& warp, const Fiber& f, int source) {
    const uint32_t had = ~0u >> (kWarpSize - warp.num_lanes), ended = f.mask & had & warp.exited;
    char mask[16];
    snprintf(mask, sizeof mask, "0x%x", f.mask);
    std::string detail = std::string("its mask ") + mask;
    if (!(f.mask >> source & 1)) {
        detail += " does not name lane " + std::to_string(source);
        return checker->undefined(
            &f, f.pc, "shuffle",
            "a mask that names the lane that is read, or a read of one that it names (such as lane "
            "__ffs(mask) - 1), or no use of its value",
            std::move(detail));
    }
    detail += " names ";
    if (ended) detail += lanes_text(ended) + ", which have ended";
    if (const uint32_t none = f.mask & ~had; none)
        detail += (ended ? ", and " : "") + lanes_text(none) + ", which the block does not have";
    checker->undefined(&f, f.pc, "shuffle",
                       "a shuffle before lanes leave (and none in a branch whose mask names lanes outside of it), or "
                       "no use of what it "
                       "gives from lane " +
                           std::to_string(source),
                       detail + ": they take no part");
}

// Notes that lanes of a mask have ended; the operation continues without them.
void ended_instead(const Warp& warp, const Fiber& f, uint32_t ended) {
    char mask[16];
    snprintf(mask, sizeof mask, "0x%x", f.mask);
    checker->never_came(&f, &warp.lanes[__builtin_ctz(ended)],
                        std::string("the mask ") + mask + " names " + lanes_text(ended) + ", which do not come here");
}

// The last lane to arrive computes the results of all.
void compute_warp_op(Warp* warp, uint32_t mask, int op) {
    uint32_t ballot = 0;
    bool all_equal = true;
    const uint64_t first_value = warp->lanes[__builtin_ctz(mask)].value;
    for_each_lane(warp, mask, [&](const Fiber& f) {
        if (f.value) ballot |= 1u << f.lane;
        all_equal &= f.value == first_value;
    });
    const uint32_t reduced = op >= EPEMU_REDUCE_ADD ? reduce(warp, mask, op) : 0;
    for_each_lane(warp, mask, [&](Fiber& f) {
        switch (op) {
            case EPEMU_WARP_SYNC: f.result = 0; break;
            case EPEMU_SHFL:
            case EPEMU_SHFL_UP:
            case EPEMU_SHFL_DOWN:
            case EPEMU_SHFL_XOR: {
                const int source = shuffle_source(op, f.lane, f.arg, f.width);
                // Reading a lane outside the mask is undefined in CUDA. Here the lane gets its own value, under the
                // checker a random one: results that depend on it then differ between seeds.
                f.result = mask >> source & 1 ? warp->lanes[source].value : checker ? machine->random.next() : f.value;
                if (checker && !(mask >> source & 1)) no_source(*warp, f, source);
                break;
            }
            case EPEMU_BALLOT: f.result = ballot | uint64_t{mask} << 32; break;
            case EPEMU_MATCH_ANY: {
                uint32_t same = 0;
                for_each_lane(warp, mask, [&](const Fiber& g) { same |= (g.value == f.value ? 1u : 0u) << g.lane; });
                f.result = same;
                break;
            }
            case EPEMU_MATCH_ALL: f.result = all_equal ? mask : 0; break;
            default: f.result = reduced;
        }
    });
}

// Ends the operation in which lane `one` waits if the other lanes of its mask wait there too. Lanes that have exited do
// not count, nor do missing lanes of a partial warp. Returns whether it ended; the lanes of `running` need no waking.
bool complete_warp_op(Warp* warp, const Fiber& one, uint32_t running) {
    const uint32_t there = ~0u >> (kWarpSize - warp->num_lanes) & ~warp->exited;
    const uint32_t named = one.mask, mask = named & there;
    const int op = one.op;
    if ((warp->arrived & mask) != mask) return false;
    bool together = true;
    for_each_lane(warp, mask, [&](const Fiber& f) { together &= f.op == op && f.mask == named; });
    if (!together) return false;
    if (checker && op == EPEMU_WARP_SYNC) checker->syncwarp(warp, mask);
    machine->schedule->join(warp, mask);
    compute_warp_op(warp, mask, op);
    if (const uint32_t ended = named & warp->exited; checker && ended) ended_instead(*warp, one, ended);
    warp->arrived &= ~mask;
    if (const uint32_t others = mask & ~running) machine->schedule->ready(warp, others);
    return true;
}

}  // namespace

void warp_ops_maybe_complete(Warp* warp) {
    for (uint32_t rest = warp->arrived; rest; rest = rest & (rest - 1) & warp->arrived)
        complete_warp_op(warp, warp->lanes[__builtin_ctz(rest)], 0);
}

void barrier_maybe_complete(Block* block) {
    if (block->arrived != block->live) return;
    if (checker) checker->barrier(block);
    machine->schedule->join(block);
    block->barrier_result = block->barrier_count;
    block->participants = block->arrived;
    block->arrived = block->barrier_count = 0;
    for (Warp& warp : block->warps)
        if (const uint32_t lanes = std::exchange(warp.in_barrier, 0)) machine->schedule->ready(&warp, lanes);
}

namespace {

constexpr unsigned kNamedBarriers = 16;

// Releases the threads of a named barrier if all have arrived. Returns whether it did.
bool complete(Block* block, size_t index) {
    Block::Named& barrier = block->named[index];
    if (barrier.arrived.size() < (barrier.threads ? barrier.threads : static_cast<unsigned>(block->live))) return false;
    const std::vector<Fiber*> all = std::move(barrier.arrived);
    block->named.erase(block->named.begin() + static_cast<ptrdiff_t>(index));
    if (checker) checker->meet(all);
    machine->schedule->join(all);
    for (Fiber* f : all) machine->schedule->ready(f->warp, 1u << f->lane);
    return true;
}

}  // namespace

void named_barriers_maybe_complete(Block* block) {
    for (size_t i = 0; i < block->named.size();)
        if (!complete(block, i)) i++;
}

// Called when no lane of the warp can run: lanes that wait at the same place have converged. Those that are furthest
// behind go on first, and may catch up with the others, as they do on GPUs.
void resolve_activemask(Warp* warp) {
    uintptr_t pc = UINTPTR_MAX;
    for_each_lane(warp, warp->in_activemask, [&](const Fiber& f) { pc = std::min(pc, f.pc); });
    uint32_t together = 0;
    for_each_lane(warp, warp->in_activemask, [&](const Fiber& f) { together |= (f.pc == pc ? 1u : 0u) << f.lane; });
    // CUDA does not guarantee that lanes have converged: under the checker only some may have.
    constexpr uint32_t kSplitOneIn = 4;
    if (checker && machine->schedule->choose(Choice::kSplit, kSplitOneIn) == 0) {
        const uint32_t first = together & -together;
        const uint32_t some = (together & machine->schedule->choose_lanes()) | first;
        if (some != together)
            checker->undefined(&warp->lanes[__builtin_ctz(first)], pc, "activemask",
                               "a mask from __ballot_sync, or what the program knows, instead of __activemask", "");
        together = some;
    }
    warp->in_activemask &= ~together;
    for_each_lane(warp, together, [&](Fiber& f) {
        f.result = together;
        make_runnable(&f);
    });
}

}  // namespace epemu

using namespace epemu;

extern "C" {

int epemu_syncthreads(int op, int predicate, unsigned site) {
    Block* block = current->block;
    Fiber* me = current;
    me->op = static_cast<int16_t>(op);
    me->mask = site;
    block->barrier_count += predicate != 0;
    block->arrived++;
    me->state = State::kBarrier;
    me->warp->in_barrier |= 1u << me->lane;
    me->what = kBarrierNames[op];
    me->pc = EPEMU_PC;
    barrier_maybe_complete(block);
    switch_to_scheduler();
    // The results still belong to this barrier: the next one completes only after this thread arrives there.
    switch (op) {
        case EPEMU_BARRIER_AND: return block->barrier_result == block->participants;
        case EPEMU_BARRIER_OR: return block->barrier_result != 0;
        default: return block->barrier_result;
    }
}

void epemu_named_barrier(unsigned id, unsigned threads) {
    Fiber* me = current;
    Block* block = me->block;
    const auto most = static_cast<unsigned>((block->num_threads + kWarpSize - 1) / kWarpSize * kWarpSize);
    if (id >= kNamedBarriers)
        raise_fault(Fault::kTrap, EPEMU_PC, 0,
                    "uses barrier " + std::to_string(id) + "; a block has those from 0 to 15");
    if (threads % kWarpSize || threads > most)
        raise_fault(Fault::kTrap, EPEMU_PC, 0,
                    "uses a barrier of " + std::to_string(threads) +
                        " threads; it must be a multiple of 32, and not more than the block has");
    auto at = std::find_if(block->named.begin(), block->named.end(), [&](const Block::Named& b) { return b.id == id; });
    if (at == block->named.end()) {
        block->named.push_back({id, threads, {}});
        at = block->named.end() - 1;
    } else if (at->threads != threads) {
        raise_fault(Fault::kTrap, EPEMU_PC, 0,
                    "comes to barrier " + std::to_string(id) + " for " + std::to_string(threads) +
                        " threads (0: all) while others wait there for " + std::to_string(at->threads));
    }
    uint32_t& warps = block->warps_of_named[id];
    warps |= 1u << (me->warp - block->warps.data());
    if (checker && threads && static_cast<unsigned>(__builtin_popcount(warps)) * kWarpSize > threads)
        checker->chosen_from(EPEMU_PC);
    at->arrived.push_back(me);
    me->state = State::kNamed;
    me->what = "__barrier_sync";
    me->pc = EPEMU_PC;
    complete(block, static_cast<size_t>(at - block->named.begin()));
    switch_to_scheduler();
}

uint64_t epemu_warp(int op, uint32_t mask, uint64_t value, int arg, int width) {
    Fiber* me = current;
    Warp* warp = me->warp;
    if (!(mask >> me->lane & 1))
        raise_fault(Fault::kTrap, EPEMU_PC, 0,
                    std::string(kWarpOpNames[op]) + " was called by a lane that its mask does not name");
    me->op = static_cast<int16_t>(op);
    me->mask = mask;
    me->pc = EPEMU_PC;
    if (checker) me->check->last_pc = static_cast<uint32_t>(EPEMU_PC);
    me->value = value;
    me->arg = arg;
    me->width = width;
    warp->arrived |= 1u << me->lane;
    if (!complete_warp_op(warp, *me, 1u << me->lane)) {
        block_current(State::kWarp, kWarpOpNames[op], EPEMU_PC);
        return me->result;
    }
    const uint64_t result = me->result;
    maybe_preempt();
    return result;
}

uint32_t epemu_activemask() {
    current->warp->in_activemask |= 1u << current->lane;
    block_current(State::kActiveMask, "__activemask", EPEMU_PC);
    return static_cast<uint32_t>(current->result);
}

int epemu_rank() { return current->block->launch->rank; }
int epemu_num_ranks() { return machine->num_ranks; }
char* epemu_heap_base(int rank) { return machine->heaps + static_cast<size_t>(rank) * machine->heap_stride; }
uint64_t epemu_heap_bytes() { return machine->settings.heap_span; }

}  // extern "C"

// ---- time, text, and the ends that a kernel chooses itself (trap, assert) -----------------------------------------

using namespace epemu;

namespace {
constexpr uint64_t kTickNs = 20;  // the cost of reading the clock in virtual time

// A loop that looks at the clock may end by time alone.
void time_matters() {
    if (current->polls) current->polls->used_clock = true;
    machine->schedule->spend(kTickNs);
    if (--quantum < 0) yield();
}

uint64_t now_ns() { return static_cast<uint64_t>(machine->schedule->now_ns()); }
}  // namespace

extern "C" {

long long epemu_clock64() {
    if (checker) checker->looked_at_clock(EPEMU_PC);
    time_matters();
    return static_cast<long long>(machine->schedule->now_ns() * machine->clock_ghz);
}

int epemu_polls_per_clock() { return machine->schedule->polls_per_clock(); }
void epemu_only_looks(bool from_now_on) { machine->schedule->only_looks(from_now_on); }

uint64_t epemu_globaltimer() {
    if (checker) checker->looked_at_clock(EPEMU_PC);
    time_matters();
    return now_ns();
}

uint64_t epemu_limit_timer() {
    time_matters();
    return now_ns();
}

// CUDA lets a sleep end early, so a turn of every other thread is as good as any duration.
void epemu_nanosleep(unsigned ns) {
    time_matters();
    if (timed) timed->spend(ns);
    yield();
}

void epemu_printf(const char* format, ...) {
    // vsnprintf needs kilobytes of stack, so the scheduler calls it, on its own.
    va_list args;
    va_start(args, format);
    current->format = format;
    current->format_args = &args;
    block_current(State::kPrinting, "printf", EPEMU_PC);
    va_end(args);
}

void epemu_trap(const char* why) { raise_fault(Fault::kTrap, EPEMU_PC, 0, why); }

void epemu_assert_fail(const char* expression, const char* file, unsigned line, const char*) {
    raise_fault(Fault::kAssert, EPEMU_PC, 0,
                std::string("assertion failed: ") + expression + " (" + file + ":" + std::to_string(line) + ")");
}

}  // extern "C"

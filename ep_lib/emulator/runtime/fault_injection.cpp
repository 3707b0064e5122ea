#include "fault_injection.hpp"

#include <algorithm>

#include "machine.hpp"

namespace epemu {
namespace {

FaultInjection& injected_faults(Machine& m) {
    if (!m.injected) m.injected = std::make_shared<FaultInjection>(m.num_ranks);
    return *m.injected;
}

uint64_t later(uint64_t now_ns, uint64_t ns) { return ns == FaultInjection::kNever ? ns : now_ns + ns; }

uint64_t clock_ns(const Machine& m) { return static_cast<uint64_t>(m.schedule->now_ns()); }

}  // namespace

uint64_t held_until(const Machine& m, const NetOp& op) {
    const uint64_t now_ns = clock_ns(m);
    if (m.network->links[op.source_rank * m.num_ranks + op.target_rank].broken) return FaultInjection::kNever;
    if (!m.injected) return 0;
    // The target does the second half of an atomic, without waiting for the source.
    if (has_stopped(m, op.target_rank) || (has_stopped(m, op.source_rank) && !op.staged)) return FaultInjection::kNever;
    uint64_t until = op.held_until_ns > now_ns ? op.held_until_ns : 0;
    if (op.staged) return until;
    for (const auto& stall : m.injected->links[op.source_rank * m.num_ranks + op.target_rank].stalls)
        if (stall.until_ns > now_ns) until = std::max(until, stall.until_ns);
    return until;
}

void about_to_send(uintptr_t pc) {
    if (!machine->injected) return;
    FaultInjection::Rank& rank = machine->injected->ranks[current->block->launch->rank];
    if (!rank.will_stop || rank.sends_left-- > 0) return;
    rank.stopped = true;
    machine->progress++;
    block_current(State::kStopped, "(stopped", pc);
}

bool has_stopped(const Machine& m, int rank) { return m.injected && m.injected->ranks[rank].stopped; }

void inject_faults(Machine& m, NetOp& op) {
    if (!m.injected) return;
    const uint64_t now_ns = clock_ns(m);
    FaultInjection::Link& link = m.injected->links[op.source_rank * m.num_ranks + op.target_rank];
    const auto delay = link.delays.find(link.posted);
    if (delay != link.delays.end()) op.held_until_ns = later(now_ns, delay->second);
    for (auto& stall : link.stalls)
        if (stall.after == link.posted) stall.until_ns = later(now_ns, stall.ns);
    link.posted++;
}

bool is_held(const Machine& m, const NetOp& op) { return held_until(m, op) != 0; }

uint64_t next_release_ns(const Machine& m) {
    uint64_t next = FaultInjection::kNever;
    if (!m.injected) return next;
    for (const auto& op : m.network->in_flight)
        if (const uint64_t until = held_until(m, *op)) next = std::min(next, until);
    return next;
}

bool skip_to_next_release(Machine& m) {
    const uint64_t next = next_release_ns(m);
    if (next == FaultInjection::kNever) return false;
    m.schedule->pass(std::max(0.0, static_cast<double>(next) - m.schedule->now_ns()));
    return true;
}

std::string describe_pending(const Machine& m, const Fiber& fiber) {
    constexpr int kListed = 3;
    std::string text = fiber.what;
    int listed = 0;
    for (const auto& w : m.network->waiters) {
        if (w.fiber != &fiber) continue;
        const int source = fiber.block->launch->rank;
        for (int target = 0; target < m.num_ranks; target++)
            for (const NetOp* op : m.network->links[source * m.num_ranks + target].ops) {
                if ((w.target >= 0 && w.target != target) || (w.queue_pair >= 0 && w.queue_pair != op->queue_pair) ||
                    (!w.for_room && op->number >= w.number))
                    continue;
                if (listed++ == kListed) return text + ", ...";
                text += listed == 1 ? ": " : ", ";
                text += std::to_string(op->bytes) + " bytes to rank " + std::to_string(target) + " on queue pair " +
                        std::to_string(op->queue_pair);
                if (has_stopped(m, target)) {
                    text += " (rank " + std::to_string(target) + " has stopped)";
                } else if (is_held(m, *op)) {
                    text += " (the link stands still)";
                } else {
                    text += op->delivered ? " (delivered, not completed)" : " (not delivered)";
                }
            }
    }
    return text;
}

}  // namespace epemu

using namespace epemu;

extern "C" {

void epemu_stall_link(Machine* m, int from, int to, uint64_t after, uint64_t ns) {
    with_memory([&] { injected_faults(*m).links[from * m->num_ranks + to].stalls.push_back({after, ns, 0}); });
}
void epemu_delay_message(Machine* m, int from, int to, uint64_t number, uint64_t ns) {
    with_memory([&] { injected_faults(*m).links[from * m->num_ranks + to].delays[number] = ns; });
}
void epemu_stop_rank(Machine* m, int rank, uint64_t after) {
    with_memory([&] {
        FaultInjection::Rank& r = injected_faults(*m).ranks[rank];
        r.will_stop = true;
        r.sends_left = after;
    });
}
int epemu_rank_stopped(Machine* m, int rank) { return has_stopped(*m, rank); }

}  // extern "C"

#include "outages.hpp"

#include <algorithm>

#include "machine.hpp"
#include "virtual_time.hpp"

namespace epemu {
namespace {

Outages& outages_of(Machine& m) {
    if (!m.outages) m.outages = std::make_shared<Outages>(m.num_ranks);
    return *m.outages;
}

uint64_t later(uint64_t now_ns, uint64_t ns) { return ns == Outages::kNever ? ns : now_ns + ns; }

uint64_t clock_ns(const Machine& m) { return timed ? static_cast<uint64_t>(timed->now()) : m.now_ns; }

}  // namespace

uint64_t held_until(const Machine& m, const NetOp& op) {
    const uint64_t now_ns = clock_ns(m);
    if (m.network->links[op.source_rank * m.num_ranks + op.target_rank].broken) return Outages::kNever;
    if (!m.outages) return 0;
    // The second half of an atomic is the target's work, and it does not wait for the source.
    if (has_stopped(m, op.target_rank) || (has_stopped(m, op.source_rank) && !op.staged)) return Outages::kNever;
    uint64_t until = op.held_until_ns > now_ns ? op.held_until_ns : 0;
    if (op.staged) return until;
    for (const auto& stall : m.outages->links[op.source_rank * m.num_ranks + op.target_rank].stalls)
        if (stall.until_ns > now_ns) until = std::max(until, stall.until_ns);
    return until;
}

void about_to_send(uintptr_t pc) {
    if (!machine->outages) return;
    Outages::Rank& rank = machine->outages->ranks[current->block->launch->rank];
    if (!rank.will_stop || rank.sends_left-- > 0) return;
    rank.stopped = true;
    machine->progress++;
    block_current(State::kStopped, "(stopped", pc);
}

bool has_stopped(const Machine& m, int rank) { return m.outages && m.outages->ranks[rank].stopped; }

void begin_outages(Machine& m, NetOp& op) {
    if (!m.outages) return;
    const uint64_t now_ns = clock_ns(m);
    Outages::Link& link = m.outages->links[op.source_rank * m.num_ranks + op.target_rank];
    const auto delay = link.delays.find(link.posted);
    if (delay != link.delays.end()) op.held_until_ns = later(now_ns, delay->second);
    for (auto& stall : link.stalls)
        if (stall.after == link.posted) stall.until_ns = later(now_ns, stall.ns);
    link.posted++;
}

bool is_held(const Machine& m, const NetOp& op) { return held_until(m, op) != 0; }

uint64_t next_release_ns(const Machine& m) {
    uint64_t next = Outages::kNever;
    if (!m.outages) return next;
    for (const auto& op : m.network->in_flight)
        if (const uint64_t until = held_until(m, *op)) next = std::min(next, until);
    return next;
}

bool skip_to_next_release(Machine& m) {
    const uint64_t next = next_release_ns(m);
    if (next == Outages::kNever) return false;
    if (timed) timed->passed(static_cast<double>(next) - timed->now());
    m.now_ns = std::max(m.now_ns, next);
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
    outages_of(*m).links[from * m->num_ranks + to].stalls.push_back({after, ns, 0});
}
void epemu_delay_message(Machine* m, int from, int to, uint64_t number, uint64_t ns) {
    outages_of(*m).links[from * m->num_ranks + to].delays[number] = ns;
}
void epemu_stop_rank(Machine* m, int rank, uint64_t after) {
    Outages::Rank& r = outages_of(*m).ranks[rank];
    r.will_stop = true;
    r.sends_left = after;
}
int epemu_rank_stopped(Machine* m, int rank) { return has_stopped(*m, rank); }

}  // extern "C"

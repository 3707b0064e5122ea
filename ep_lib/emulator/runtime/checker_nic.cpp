// Operations of NICs, as threads of their own.
//
// Each begins with the clock of its poster. When it writes, its clock has joined the operations that its fabric orders
// before it: on rc all earlier ones of its queue pair, on any fabric those before a fence.
#include "checker.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {
namespace {

uint8_t system_atomic(bool staged) {
    return static_cast<uint8_t>(kWrites | kAtomic | EPEMU_SCOPE_SYSTEM << kScopeShift | (staged ? kStaged : 0));
}

}  // namespace

VectorClock& Checker::link(std::unordered_map<uint64_t, VectorClock>& clocks, int source, int target, int queue_pair) {
    return clocks[(static_cast<uint64_t>(source) << 16 | static_cast<uint64_t>(target)) << 32 |
                  static_cast<uint32_t>(queue_pair)];
}

void Checker::net_posted(NetOp& op, Fiber* poster, uintptr_t pc) {
    const auto [id, time] = new_op(op.source_rank);
    if (op.signal) witness.posted(*poster, op.signal, static_cast<uint32_t>(pc));
    auto* check = new OpCheck;
    op.check = check;
    check->reader.clock = publish(*poster->check).clock;
    check->reader.proxied = poster->check->proxied;
    check->reader.id = id;
    check->reader.time = time;
    check->reader.rank = -1;  // outside of all ranks' scopes but the system's
    check->reader.block = kNoBlock;
    check->reader.owner = nullptr;
    check->writer = check->reader;
    VectorClock& known = check->writer.clock;
    known.join(link(fences_, op.source_rank, op.target_rank, op.queue_pair));
    known.join(link(fences_, op.source_rank, op.target_rank, -1));
    // A queue pair of rc keeps the order, except that a get may read late: later operations may already have written.
    const bool gets = op.kind == NetKind::kGet;
    VectorClock& in_order = link(gets ? read_ : written_, op.source_rank, op.target_rank, op.queue_pair);
    if (m_.network->settings.kind != Fabric::kSrd) {
        known.join(link(written_, op.source_rank, op.target_rank, op.queue_pair));
        known.join(in_order);
    }
    in_order.join(known);
    in_order.raise(id, time);
    VectorClock& earlier = link(posted_, op.source_rank, op.target_rank, op.queue_pair);
    earlier.join(known);
    earlier.raise(id, time);

    check->record = records_.size();
    record_by_op_[static_cast<uint64_t>(id) << 32 | time] = records_.size();
    records_.push_back({op.number, op.kind, op.signal != 0, op.bytes != 0, op.source_rank, op.target_rank,
                        op.queue_pair, op.bytes, op.poster, id, time,
                        op.poster.check_id ? op.poster.check_id : poster->check->id,
                        op.poster.check_id ? op.poster.check_time : poster->check->time - 1, 0, 0, 0, m_.picks});
    if (op.signal_op != EPEMU_SIGNAL_ADD) records_.back().sets = op.signal;
    const NetOrder* beside =
        op.poster.check_id ? nullptr : witness.ordered_beside(*poster->check, op.target_rank, op.queue_pair);
    if (beside) records_.back().beside = *beside;
    if (op.bytes) read_of_memory(check->reader, op.from, op.bytes, 0, pc);
    if (recorder) {
        recorder->posted(op, *poster, id);
        recorder->learned(check->reader.clock, op.source_rank);
    }
    if (op.bytes) touch(check->reader, op.from, op.bytes, 0, pc);
}

void Checker::net_read(NetOp& op, uintptr_t address, size_t bytes) {
    if (recorder) recorder->by_nic(EventKind::kNicRead, op, address, bytes, check_of(op).reader);
    Record& r = records_[check_of(op).record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::net_wrote(NetOp& op, uintptr_t address, size_t bytes) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = m_.picks;
    if (recorder) recorder->by_nic(EventKind::kNicWrite, op, address, bytes, check_of(op).writer);
    touch(check_of(op).writer, address, bytes, kWrites, op.poster.pc);
}

// This operation, and everything before it, happens before the code behind an acquire of the signal.
void Checker::net_signalled(NetOp& op, uint64_t now) {
    ThreadCheck& t = check_of(op).writer;
    records_[check_of(op).record].delivered = m_.picks;
    const bool adds = op.signal_op == EPEMU_SIGNAL_ADD;
    const auto pc = static_cast<uint32_t>(op.poster.pc);
    witness.nic_stored(t, op.source_rank, op.signal, op.value_bytes, pc, adds);
    if (recorder) recorder->by_nic(EventKind::kNicSignal, op, op.signal, static_cast<size_t>(op.value_bytes), t);
    Location& l = location(t, op.signal, op.value_bytes);
    const size_t place = weak ? make_newest(l) : 0;
    touch(t, op.signal, op.value_bytes, system_atomic(adds && m_.network->settings.stages_atomics()), op.poster.pc,
          adds ? kReadsToo : 0);
    if (!adds || !observes(l, t, EPEMU_SCOPE_SYSTEM)) l.published.clear();
    Known known = {t.clock, t.proxied};
    known.clock.raise(t.id, t.time);
    contribute(l, t, std::move(known), EPEMU_SCOPE_SYSTEM);
    wrote_atomically(l, l, t, EPEMU_SCOPE_SYSTEM, op.source_rank, pc, adds);
    if (weak) written(l, l, place, &now, t, t.time, adds);
}

void Checker::net_completed(NetOp& op) {
    OpCheck* check = &check_of(op);
    if (recorder) recorder->by_nic(EventKind::kComplete, op, 0, 0, check->writer);
    records_[check->record].completed = m_.picks;
    free_ops_[op.source_rank].emplace_back(check->reader.id, check->reader.time + 1);
    delete check;
    op.check = nullptr;
}

VectorClock Checker::net_posted_so_far(int source, int target, int queue_pair) {
    VectorClock all;
    for (int to = 0; to < m_.num_ranks; to++) {
        if (target >= 0 && to != target) continue;
        for (int qp = 0; qp < m_.network->settings.queue_pairs; qp++)
            if (queue_pair < 0 || qp == queue_pair) all.join(link(posted_, source, to, qp));
    }
    return all;
}

void Checker::net_fence(int source, int target, int queue_pair) {
    link(fences_, source, target, queue_pair).join(net_posted_so_far(source, target, queue_pair));
}

void Checker::net_quiet(Fiber* fiber, const VectorClock& covered, uintptr_t pc) {
    fiber->check->clock.join(covered);
    fiber->check->waited_pc = static_cast<uint32_t>(pc);
    if (!recorder) return;
    recorder->quiet(*fiber, pc);
    recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

}  // namespace epemu

// Operations of NICs as threads of their own. Each knows what its poster knew; when it writes, also what its fabric keeps
// before it: on rc all that was posted earlier on its queue pair, on any fabric what a fence put before it.
#include "checker.hpp"
#include "network.hpp"

namespace epemu {
namespace {

constexpr uint32_t kOpIds = 256;  // taken at once; an id rests while others are used, so that races stay visible
constexpr uint64_t kNoBlock = ~1ull;

uint8_t system_atomic(bool staged) {
    return static_cast<uint8_t>(kWrites | kAtomic | EPEMU_SCOPE_SYSTEM << kScopeShift | (staged ? kStaged : 0));
}
OpCheck& check_of(NetOp& op) { return *static_cast<OpCheck*>(op.check); }

}  // namespace

Clock& Checker::link(std::unordered_map<uint64_t, Clock>& clocks, int source, int target, int queue_pair) {
    return clocks[(static_cast<uint64_t>(source) << 16 | static_cast<uint64_t>(target)) << 32 |
                  static_cast<uint32_t>(queue_pair)];
}

void Checker::net_posted(NetOp& op, Fiber* poster, uintptr_t pc) {
    auto& free = free_ops_[op.source_rank];
    if (free.size() < kOpIds / 2) {
        const Ids& ids = ids_[new_ids(op.source_rank, kOpIds, true)];
        for (uint32_t i = 0; i < kOpIds; i++) free.emplace_back(ids.first + i, 1);
    }
    const auto [id, time] = free.front();
    free.pop_front();

    auto* check = new OpCheck;
    op.check = check;
    check->reader.known = publish(*poster->check);
    check->reader.id = id;
    check->reader.time = time;
    check->reader.rank = -1;  // outside of all ranks' scopes but the system's
    check->reader.block = kNoBlock;
    check->reader.owner = nullptr;
    check->writer = check->reader;
    Clock& known = check->writer.known;
    known.join(link(fences_, op.source_rank, op.target_rank, op.queue_pair));
    known.join(link(fences_, op.source_rank, op.target_rank, -1));
    Clock& earlier = link(posted_, op.source_rank, op.target_rank, op.queue_pair);
    if (m_.network->settings.kind != Fabric::kSrd) known.join(earlier);
    earlier.join(known);
    earlier.raise(id, time);

    check->record = records_.size();
    record_by_op_[static_cast<uint64_t>(id) << 32 | time] = records_.size();
    records_.push_back({op.number, op.kind, op.signal != 0, op.bytes != 0, op.source_rank, op.target_rank,
                        op.queue_pair, op.bytes, op.poster, poster->check->id, poster->check->time - 1, m_.picks});
    if (op.bytes) touch(check->reader, op.from, op.bytes, 0, pc);
}

void Checker::net_read(NetOp& op) {
    Record& r = records_[check_of(op).record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::net_wrote(NetOp& op, uintptr_t address, size_t bytes) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = m_.picks;
    touch(check_of(op).writer, address, bytes, kWrites, op.poster.pc);
}

// Whoever acquires the signal knows this operation, and all that was before it.
void Checker::net_signalled(NetOp& op, bool staged) {
    ThreadCheck& t = check_of(op).writer;
    records_[check_of(op).record].delivered = m_.picks;
    Location& l = location(t, op.signal);
    if (op.signal_op == EPEMU_SIGNAL_SET) l.published.clear();
    Clock clock = t.known;
    clock.raise(t.id, t.time);
    contribute(l, t, std::move(clock), EPEMU_SCOPE_SYSTEM);
    l.writer = t.id;
    l.writer_rank = op.source_rank;
    l.store_pc = static_cast<uint32_t>(op.poster.pc);
    touch(t, op.signal, op.value_bytes, system_atomic(staged), op.poster.pc);
}

void Checker::net_completed(NetOp& op) {
    OpCheck* check = &check_of(op);
    records_[check->record].completed = m_.picks;
    free_ops_[op.source_rank].emplace_back(check->reader.id, check->reader.time + 1);
    delete check;
    op.check = nullptr;
}

Clock Checker::net_posted_so_far(int source, int target, int queue_pair) {
    Clock all;
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

void Checker::net_quiet(Fiber* fiber, const Clock& covered, uintptr_t pc) {
    fiber->check->known.join(covered);
    fiber->check->waited_pc = static_cast<uint32_t>(pc);
}

}  // namespace epemu

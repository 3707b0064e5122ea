// Asynchronous and bulk copies, and the barriers and groups that wait for them.
#include <algorithm>
#include <tuple>

#include "checker.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {

void Checker::copy_posted(NetOp& op, Fiber* poster, BulkCheck* check) {
    auto* threads = new OpCheck;
    op.check = threads;
    const bool first = !check->time;
    if (first) {
        std::tie(check->id, check->time) = new_op(op.source_rank);
        check->rank = op.source_rank;
    }
    ThreadCheck& reader = threads->reader;
    reader.clock = publish(*poster->check).clock;
    reader.proxied = poster->check->proxied;
    reader.id = check->id;
    reader.time = check->time;
    reader.rank = -1;
    reader.block = kNoBlock;
    reader.owner = nullptr;
    threads->writer = reader;
    threads->writer.time++;
    if (first) {
        for (const uint32_t time : {reader.time, reader.time + 1})
            record_by_op_[static_cast<uint64_t>(reader.id) << 32 | time] = records_.size();
        records_.push_back({op.number, op.kind, false, true, op.source_rank, op.target_rank, 0, op.bytes, op.poster,
                            reader.id, reader.time, poster->check->id, poster->check->time - 1, 0, op.to, op.to,
                            m_.picks});
    }
    threads->record = record_by_op_[static_cast<uint64_t>(reader.id) << 32 | reader.time];
    Record& record = records_[threads->record];
    record.call = op.kind != NetKind::kBulkStore ? 0 : poster->check->stores_called;
    record.to_begin = std::min(record.to_begin, op.to);
    record.to_end = std::max(record.to_end, op.to + op.bytes);
    if (recorder) {
        recorder->posted(op, *poster, check->id);
        recorder->learned(reader.clock, op.source_rank);
    }
    if (op.kind != NetKind::kAsyncCopy) {
        touch(reader, op.from, op.bytes, 0, op.poster.pc, kAsync);
        return;
    }
    // The copy uses the generic proxy. Its write comes later, but is noted now, so that conflicting accesses until then
    // are found.
    if (op.copy->source_bytes) touch(reader, op.from, op.copy->source_bytes, 0, op.poster.pc);
    touch(threads->writer, op.to, op.bytes, kWrites, op.poster.pc);
}

void Checker::store_called(Fiber* fiber) {
    ThreadCheck& t = *fiber->check;
    t.called_at[++t.stores_called % std::size(t.called_at)] = ++t.time;
}

void Checker::copy_read(const NetOp& op) {
    const OpCheck& check = *static_cast<OpCheck*>(op.check);
    if (recorder) recorder->by_nic(EventKind::kNicRead, op, op.from, op.bytes, check.reader);
    Record& r = records_[check.record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::copy_wrote(NetOp& op) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = r.completed = m_.picks;
    if (recorder) {
        recorder->by_nic(EventKind::kNicWrite, op, op.to, op.bytes, check_of(op).writer);
        recorder->by_nic(EventKind::kComplete, op, 0, 0, check_of(op).writer);
    }
    if (op.kind != NetKind::kAsyncCopy) touch(check_of(op).writer, op.to, op.bytes, kWrites, op.poster.pc, kAsync);
    delete &check_of(op);
    op.check = nullptr;
}

// The barrier itself is a shared object with atomic accesses.
Known Checker::barrier_arrived(Fiber* fiber, uintptr_t barrier, uintptr_t pc) {
    touch(*fiber->check, barrier, sizeof(uint64_t), atomic_flags(EPEMU_RELEASE, EPEMU_SCOPE_BLOCK, true), pc,
          kReadsToo);
    return publish(*fiber->check);
}

// `again`: this thread has waited for this round before.
void Checker::barrier_waited(Fiber* fiber, uintptr_t barrier, const Known& complete, bool again, uintptr_t pc) {
    join(*fiber->check, complete);
    fiber->check->asked_again_pc = again ? static_cast<uint32_t>(pc) : 0;
    fiber->check->waited_pc = static_cast<uint32_t>(pc);
    if (fiber->lane == 0)  // lane 0 arrives for all lanes
        touch(*fiber->check, barrier, sizeof(uint64_t), atomic_flags(EPEMU_ACQUIRE, EPEMU_SCOPE_BLOCK, false), pc);
    if (recorder) recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

void Checker::copies_complete(const BulkCheck& check, bool written, Known* known) {
    if (check.time) known->clock.raise(check.id, check.time + written);
}

void Checker::copies_awaited(Fiber* fiber, const BulkCheck& check, bool written) {
    if (check.time) fiber->check->clock.raise(check.id, check.time + written);
    if (recorder) recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

void Checker::copies_forgotten(const BulkCheck& check) {
    if (check.time) free_ops_[check.rank].emplace_back(check.id, check.time + 2);
}

void Checker::copies_end_with_block(const BulkCheck& check, const Block* block, bool read_awaited) {
    if (!check.time) return;
    launches_[block->launch].end.raise(check.id, check.time + 1);
    if (read_awaited) return;
    const Record& r = *record_of(check.id, check.time);
    const Side side = {check.id, check.time, static_cast<uint32_t>(r.poster.pc), 0};
    Finding& finding = note(side, side);
    finding.where = "shared memory of rank " + std::to_string(r.source) + " block " + triple(block->index);
    finding.verdict.kind = "source reused";
    finding.verdict.remedy = "tma_wait_read<0> before the block ends: its shared memory goes to another block";
    finding.verdict.certainty = 22;
}

void Checker::rounds_end_with_block(const Known& complete, const Block* block) {
    launches_[block->launch].end.join(complete.clock);
}

void Checker::copy_outlives(const NetOp& op, const Block* block) {
    if (op.kind != NetKind::kBulkLoad) return;  // a store may continue after its read
    const BulkCheck& check = op.copy->check;
    const Side side = {check.id, check.time + 1, static_cast<uint32_t>(op.poster.pc), kWrites};
    Finding& finding = note(side, side);
    finding.where = describe_address(m_, op.to);
    finding.verdict.kind = "read before arrival";
    finding.verdict.remedy = "tma_wait before the block ends: its shared memory goes to another block";
    finding.verdict.certainty = 22;
    judge_phase(*op.copy->fiber->check, &finding.verdict);
    launches_[block->launch].end.raise(check.id, check.time + 1);
}

// Later bulk copies see everything before this fence.
void Checker::proxy_fence(Fiber* fiber) {
    ThreadCheck& t = *fiber->check;
    t.proxied = t.clock;
    t.proxied_time = t.time++;
}

}  // namespace epemu

// Conflicts in spite of a synchronisation: two threads have used a signal, lock or credit, in which something is
// missing.
#include <algorithm>

#include "checker.hpp"
#include "checker_findings.hpp"
#include "machine.hpp"
#include "network.hpp"

namespace epemu {

// For threads and NICs alike: there was a synchronisation, but it does not reach the second access.
bool Checker::judge_synchronisation(const Conflict& c, Verdict* v) const {
    const ThreadCheck& t = c.t;
    if (!t.owner) return false;
    const Record* op = record_of(c.slot.id, c.slot.time);
    const int from_rank = !op ? ids_of(c.slot.id).rank : op->kind == NetKind::kPut || is_copy(op) ? op->source : -1;
    // Another thread of the block has waited, but has not passed its knowledge on.
    const ThreadCheck* waited = nullptr;
    for (const ThreadCheck& sibling : t.owner->threads) {
        if (sibling.id == t.id || sibling.id == c.slot.id) continue;
        if (!happens_before(c.slot.id, c.slot.time, sibling.clock)) continue;
        waited = &sibling;
        if (sibling.id / kWarpSize == t.id / kWarpSize) break;
    }
    // (In memory that was written before, it may rightly be a round ahead. If this thread itself has a signal from
    // behind the post of a put, the signal has overtaken the put, whatever other threads have acquired since.)
    const bool overtaken = op && op->kind == NetKind::kPut && op->poster.rank != t.rank &&
                           happens_before(op->poster_id, op->poster_time, t.clock);
    if (waited && !overtaken && !(c.slot.flags & kAgain)) {
        bool warp = waited->id / kWarpSize == t.id / kWarpSize;
        uint32_t wait_pc = waited->waited_pc;
        const Fiber* polls = warp ? nullptr : polling_sibling(t);
        if (polls &&
            polls->check->id / kWarpSize == t.id / kWarpSize) {  // each warp waits for itself, and this one still
            warp = true;
            wait_pc = static_cast<uint32_t>(polls->pc);
        }
        v->kind = "race";
        v->remedy = warp ? warp_barrier(t.owner->threads.size()) : kSyncthreads;
        v->detail = "another thread of the block has acquired it, but has not handed that on through a barrier";
        v->certainty = warp ? 31 : 32;
        v->what = warp ? "__syncwarp()" : "__syncthreads()";
        v->how = wait_pc ? "between" : "before";
        v->from = wait_pc;
        v->to = c.pc;
        return true;
    }
    Hint hint = t.owner->hint;
    const std::vector<SyncLoad> waits = witness.waits_of(t.block);
    const auto is_relaxed = [&](auto&& same) {
        return std::any_of(waits.begin(), waits.end(),
                           [&](const SyncLoad& l) { return !acquires(l.order) && same(l); });
    };
    const bool together = !op && past_of(c.slot.id, c.slot.time).block == t.block;  // they hand over by flags
    if (hint.why == Hint::kNotAcquired && !is_relaxed([&](const SyncLoad& l) { return l.pc == hint.load_pc; }))
        hint.why = Hint::kNone;
    for (const ThreadCheck& sibling : t.owner->threads)
        for (const Known& pending : sibling.pending)
            if (hint.why == Hint::kNone && (!together || sibling.id == t.id) &&
                happens_before(c.slot.id, c.slot.time, pending.clock) &&
                is_relaxed([&](const SyncLoad& l) { return l.id == sibling.id; }))
                hint = {Hint::kNotAcquired, from_rank, 0, 0, 0, 0};
    if (hint.why == Hint::kNone || hint.writer_rank != from_rank || from_rank < 0) return false;
    if (!op && hint.writer == c.slot.id && hint.stored < c.slot.time) return false;  // it came before the write
    if (!op && hint.store_pc && ids_of(hint.writer).first != ids_of(c.slot.id).first) return false;  // of another block
    if (!op && c.t.clock.get(hint.writer) >= hint.stored) return false;  // known in another way, which explains nothing
    const char* texts[] = {"", "the signal in between is stored without release, so it publishes nothing",
                           "the signal in between is loaded without acquire, so nothing is ordered after it",
                           "the signal in between has a scope that does not reach the other thread"};
    const char* advice[] = {"", "store the signal with release", "load the signal with acquire",
                            "give both a scope that reaches the other thread"};
    v->kind = "race";
    v->detail = texts[hint.why];
    v->remedy =
        hint.why == Hint::kScope ? "a scope that includes the other rank (sys) or block (gpu)" : kReleaseAcquire;
    v->certainty = 30;
    v->what = advice[hint.why];
    v->how = hint.why == Hint::kScope ? "both" : "at";
    v->from = hint.store_pc;
    v->to = hint.why == Hint::kNotReleased ? hint.store_pc : hint.load_pc;
    return true;
}

namespace {

// One side of a hand-over: how far its release or acquire reaches, and the line that keeps it from reaching further.
struct Reach {
    int scope = -1;  // -1: it neither releases nor acquires
    uint32_t pc = 0;
    bool by_fence = false;
    void take(int wider, uint32_t line, bool fence) {
        if (wider > scope) *this = {wider, line, fence};
    }
};

}  // namespace

// Whether the store that this load has seen came after the event, in the event's thread or ordered behind it: a release
// there and an acquire here would have ordered the event.
bool Checker::follows(const Event& e, const SyncLoad& l) {
    const SyncStore& s = l.seen;
    if (!s.pc || s.kind == SyncKind::kNic || s.block != e.block || s.id == l.id) return false;
    return s.id == e.id ? s.time >= e.time : happens_before(e.id, e.time, s.known);
}

// Whether the store and the load that sees it order the event before the code behind the load. If not, `v` gets what
// is missing.
bool Checker::judge_link(const Event& e, const SyncLoad& l, int rank, uint64_t block, Verdict* v) const {
    const SyncStore& s = l.seen;
    const bool own = s.id == e.id;
    const int needed = s.block == block ? EPEMU_SCOPE_BLOCK : s.rank == rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
    Reach given, taken;
    bool fenced_too_early = false;  // before a barrier, behind which the thread knows other threads' writes
    if (releases(s.order)) given.take(s.scope, s.pc, false);
    for (const FenceSeen& f : s.fences) {
        if (f.pc && (own ? f.time >= e.time : happens_before(e.id, e.time, f.known))) {
            given.take(std::min(f.scope, s.scope), f.scope < s.scope ? f.pc : s.pc, f.scope < s.scope);
        } else if (f.pc && !own && f.scope >= needed) {
            fenced_too_early = true;
        }
    }
    if (acquires(l.order)) taken.take(l.scope, l.pc, false);
    if (l.fence.pc)
        taken.take(std::min(l.fence.scope, l.scope), l.fence.scope < l.scope ? l.fence.pc : l.pc,
                   l.fence.scope < l.scope);
    if (given.scope >= needed && taken.scope >= needed) return false;
    // A ticket lock may be given back by a plain store: by a thread that had waited for its own turn in the same line.
    const bool lock = ((l.swap || s.gives_turn) && witness.is_lock(l.address, e.id)) ||
                      (own && s.turn && offset_of(s.turn) == offset_of(l.pc));
    const bool giver = given.scope < needed;
    const Reach& side = giver ? given : taken;
    const std::string fence = kFences[needed], thing = lock ? "lock" : "signal";
    v->kind = "race";
    v->certainty = lock ? 51 : 40;
    v->signal = s.pc;
    v->wait = l.pc;
    v->how = "at";
    v->lock = lock ? l.address : 0;
    if (side.scope >= 0) {
        const std::string narrow = side.by_fence ? lock ? "the fence at the lock" : "the fence"
                                   : giver       ? "the " + thing + "'s store"
                                                 : "the " + thing + "'s load";
        v->detail = narrow + (lock ? " reaches " : " between the two reaches ") + kReach[side.scope] +
                    ", and the other thread is " + kOtherIs[needed];
        v->remedy = "scope: " + (side.by_fence ? fence : std::string(kScopes[needed])) +
                    " is the smallest that reaches a thread " + kOtherIs[needed];
        v->what = side.by_fence ? "use " + fence : std::string("give it the scope ") + kScopes[needed];
        v->to = side.pc;
    } else if (lock) {
        v->detail = giver ? "both hold the lock here, but it is given back without release: what was done under it is "
                            "not published"
                          : "both hold the lock here, but it is taken without acquire: what was done under it before "
                            "need not be seen";
        v->remedy =
            std::string("release/acquire of the lock: ") + fence + " after it is taken and before it is given back";
        v->what = giver ? "give the lock back with release (or put " + fence + " before it)"
                        : "take the lock with acquire (or put " + fence + " after it)";
        v->to = giver ? s.pc : l.pc;
    } else {
        v->detail = giver ? "the signal in between is stored without release, so it publishes nothing"
                          : "the signal in between is loaded without acquire, so nothing is ordered after it";
        const bool both = giver && taken.scope < needed;
        v->remedy = std::string(kReleaseAcquire) +
                    (both    ? ", before the signal and after the wait: "
                     : giver ? " before the signal: "
                             : " after the wait: ") +
                    fence + " is enough";
        v->what = both && s.pc == l.pc ? "use acquire and release (acq_rel)"
                  : giver              ? "store the signal with release"
                                       : "load the signal with acquire";
        v->to = giver ? s.pc : l.pc;
        if (giver && fenced_too_early) {
            v->detail =
                "the fence comes before the barrier, and so covers, in PTX's memory model, only what its own thread "
                "has done; the "
                "signal behind the barrier is stored without release";
            v->what = "put " + fence + " behind the barrier, before the signal";
        }
    }
    return true;
}

// The thread of the first access has stored something later, and this thread has seen it (with `others`: by way of a
// third thread). So the accesses were meant to be ordered: which link is missing?
bool Checker::judge_hand_over(const Conflict& c, Verdict* v, bool others) const {
    const ThreadCheck& t = c.t;
    const Slot& slot = c.slot;
    if (!t.owner || ids_of(slot.id).nic) return false;
    const Event first = {slot.id, slot.time, past_of(slot.id, slot.time).block};
    for (const SyncLoad& l : witness.waits_of(t.block)) {
        if (l.is_of(c.address)) continue;  // the location of the conflict itself
        if (l.id != t.id && !happens_before(l.id, l.time, t.clock)) continue;
        if (!others) {
            if (follows(first, l) && judge_link(first, l, t.rank, t.block, v)) return true;
            continue;
        }
        const SyncStore& s = l.seen;
        if (!s.pc || s.kind == SyncKind::kNic || s.block == t.block) continue;
        for (const SyncLoad& before : witness.waits_of(s.block)) {
            const Event third = {before.id, before.time, s.block};
            if (!follows(first, before) || !follows(third, l)) continue;
            if (!judge_link(first, before, s.rank, s.block, v) && !judge_link(third, l, t.rank, t.block, v)) continue;
            v->detail = "by way of a third thread, " + v->detail;
            v->certainty = 23;
            return true;
        }
    }
    return false;
}

// One side held a lock, the other did not take it.
bool Checker::judge_one_sided_lock(const Conflict& c, Verdict* v) const {
    if (!c.t.owner || ids_of(c.slot.id).nic) return false;
    const SyncStore *theirs = witness.held(c.slot.id, c.slot.time, &v->lock),
                    *mine = witness.held(c.t.id, c.t.time, &v->lock);
    if ((theirs != nullptr) == (mine != nullptr)) return false;
    v->kind = "race";
    v->certainty = 45;
    const SyncStore& taken = *(theirs ? theirs : mine);
    v->signal = taken.pc;
    v->detail = "one of the two holds a lock, and the other does not take it";
    v->remedy = "the same lock on both sides";
    v->how = "take";
    v->from = v->signal;
    v->called = taken.caller;
    v->to = theirs ? c.pc : c.slot.pc;
    return true;
}

// A wait that ended at once, because of a value of an earlier launch.
bool Checker::judge_stale(const ThreadCheck* reader, const Past& writer, Verdict* v) const {
    if (!reader) return false;
    for (const SyncLoad& l : witness.waits_of(reader->block)) {
        const SyncStore& s = l.seen;
        if (!s.pc || s.rank != writer.rank || !s.launch) continue;
        if (l.id != reader->id && !happens_before(l.id, l.time, reader->clock)) continue;
        if (s.launch >= writer.launch || l.launch <= 1) return false;
        v->kind = "race";
        v->certainty = 41;
        v->detail = "the wait was over with the value that launch " + std::to_string(s.launch) +
                    " stored; this is launch " + std::to_string(writer.launch);
        v->remedy =
            "an epoch: signal and wait for a value that grows with each launch (or clear the signal between them)";
        v->what = "wait for this launch's value";
        v->how = "at";
        v->to = l.pc;
        v->signal = s.pc;
        v->wait = l.pc;
        return true;
    }
    return false;
}

// The reader (`itself`, or for it another thread of its block) has waited for what another thread than the writer and
// those of its block has stored. Only the end of the run shows whether the writer stores there, too.
void Checker::note_wait(const Conflict& c, bool itself, Verdict* v) const {
    const ThreadCheck& t = c.t;
    const uint64_t writer = past_of(c.slot.id, c.slot.time).block;
    for (const SyncLoad& l : witness.waits_of(t.block)) {
        if (!l.seen.pc || l.seen.id == t.id || !acquires(l.order) || l.is_of(c.address)) continue;
        if (l.id != t.id && (itself || !happens_before(l.id, l.time, t.clock))) continue;
        if (l.seen.id == c.slot.id || (l.seen.block == writer && writer != t.block)) return;
        v->waited_in = l.pc;
        v->giver = writer;
        v->waited_on = l.address;
        return;
    }
}

// Whether one of these waits stands in this line.
bool Checker::is_wait(const std::vector<SyncLoad>& waits, uint32_t pc) const {
    return std::any_of(waits.begin(), waits.end(),
                       [&](const SyncLoad& wait) { return offset_of(wait.pc) == offset_of(pc); });
}

// The writer has waited for a credit, but one from before the read. In one block the reader is a warp.
void Checker::judge_old_credit(const ThreadCheck& writer, uint32_t reader, uint64_t reader_block, Verdict* v) const {
    const auto by_reader = [&](uint32_t id) {
        return writer.block != reader_block || (id != writer.id && id / kWarpSize == reader / kWarpSize);
    };
    std::vector<SyncLoad> data_waits;
    for (SyncLoad& l : witness.waits_of(reader_block))
        if (by_reader(l.id)) data_waits.push_back(std::move(l));
    if (data_waits.empty() || judge_needless_wait(writer.block, writer.id, writer.time, data_waits, v)) return;
    for (const SyncLoad& l : witness.waits_of(writer.block)) {
        if (!l.seen.pc || l.seen.block != reader_block || !by_reader(l.seen.id) || l.seen.kind == SyncKind::kNic)
            continue;
        if (l.id != writer.id && !happens_before(l.id, l.time, writer.clock)) continue;
        v->signal = l.seen.pc;
        v->wait = l.pc;
        // Where the reader waits in this line for data, it is a credit only if it is given behind the read.
        v->how = is_wait(data_waits, l.pc) ? "credit_or_data" : "credit_old";
        v->detail = "the writer has waited for a credit, but that one was given before this read";
        v->certainty++;
        return;
    }
    for (const SyncLoad& l : witness.waits_of(writer.block)) {
        if (l.id != writer.id || l.seen.block != writer.block || is_wait(data_waits, l.pc)) continue;
        v->waited_in = l.pc;
        v->giver = reader_block;
        v->waited_on = l.address;
        return;
    }
}

// The writer has waited for a credit, but for less than the first one.
bool Checker::judge_needless_wait(uint64_t writer_block, uint32_t writer, uint32_t until,
                                  const std::vector<SyncLoad>& data_waits, Verdict* v) const {
    if (data_waits.empty()) return false;
    for (const SyncLoad& l : witness.waits_of(writer_block)) {
        if (l.id != writer || l.time > until || l.seen.pc || l.updates || !acquires(l.order)) continue;
        if (is_wait(data_waits, l.pc) || witness.store_at(writer_block, l.address)) continue;
        v->from = l.pc;
        v->how = "credit_more";
        v->detail = "the writer's wait for a credit was over with the first value of that word, before any credit";
        v->certainty++;
        return true;
    }
    return false;
}

// A sequence lock: what is stored now may come between the two looks of a reader, which find the same all the same.
void Checker::marks_only_the_end(const ThreadCheck& t, uintptr_t address, uint32_t pc, uint8_t flags) {
    Section section;
    const SyncLoad* read = witness.half_marked(t, address, &section);
    if (!read) return;
    const Side first = {read->id, read->time, read->pc, atomic_flags(read->order, read->scope, false)};
    const Side second = {t.id, t.time, pc, flags};
    Finding& finding = note(first, second);
    if (finding.count > 1) return;
    finding.where = describe_address(m_, address);
    Verdict& v = finding.verdict;
    v.detail =
        "the reader takes what it reads if its looks before and behind find the same, and they do while this is "
        "written: only the end of the writing is marked";
    v.certainty = 45;
    v.how = "mark";
    v.from = section.again;
    v.to = pc;
    v.signal = witness.last_of(section.mark, t)->pc;
    v.wait = section.first;
}

// Whether the thread has read, in the same statement, the place that it writes now.
bool Checker::has_just_read(const Conflict& c) const {
    constexpr uint32_t kOneStatement = 96;  // bytes of code between a read and its write
    const auto is_it = [&](const Slot& own) {
        return own.id == c.t.id && (own.bytes & c.bytes) && !(own.flags & kWrites) && c.pc - own.pc < kOneStatement;
    };
    if (c.cell.any_slot(is_it)) return true;
    if (!c.cell.more()) return false;
    const More& more = more_[c.cell.more() - 1];
    if (std::any_of(more.slots.begin(), more.slots.end(), is_it)) return true;
    bool found = false;
    for (const Crowd& crowd : more.crowds) crowd.for_each([&](const Slot& own) { return !(found = is_it(own)); });
    return found;
}

// Whether a thread has seen a store of this other thread of the block: they also synchronise by flags.
bool Checker::hand_over_by_flags(const ThreadCheck& t, uint32_t other, uintptr_t data) const {
    for (const SyncLoad& l : witness.waits_of(t.block))
        if (l.seen.pc && l.seen.block == t.block && !l.is_of(data) &&
            ((l.id == t.id && (l.seen.id == other || witness.store_at(t.block, l.address, other))) ||
             (l.id == other && l.seen.id == t.id)))
            return true;
    return false;
}

}  // namespace epemu

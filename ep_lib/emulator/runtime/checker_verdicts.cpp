// What a conflict means: which mistake it is, what is missing, and where to put it.
//
// One occurrence seldom tells all. Whether a lane read before lane 0's wait or behind it looks the same to the lane; but
// where lane 0 has acquired the data and the lane has not, a barrier is missing. So each occurrence says how sure it is,
// and the surest is reported:
//
//   10  threads of one warp (12: of one block) and nothing in between; one more if it must be so in the first round.
//       Less than what the same lines do across blocks
//   20  nothing is known but that nothing orders the two
//   21  memory that was used before: most likely again too early
//   22  memory that was not used before, and somebody who has not waited at all
//   23  ... who has heard something else from the writer: the signal came before the data
//   24  ... who has heard what the writer did after his post: the signal overtook the data
//   25  ... while a thread of the same warp (26: block) still waits
//   30  a signal in between without release, acquire or enough scope
//   31  a thread of the same warp (32: block) is ordered and this one is not
//   50  no order would help: atomics are missing or mixed
#include "checker.hpp"
#include "network.hpp"
#include "remedies.hpp"

namespace epemu {
const ThreadCheck* Checker::running(uint32_t id, uint64_t block) const {
    for (const auto& b : m_.resident)
        if (b->id == block && b->check) return &b->check->threads[id - b->check->first_id];
    return nullptr;
}

// Has anything that `other`'s block published reached this thread?
bool Checker::knows_of_block(const ThreadCheck& t, const ThreadCheck& other) const {
    const uint32_t since = past_of(other.id, other.time).since;
    for (const ThreadCheck& mate : other.owner->threads)
        if (t.known.get(mate.id) >= since) return true;
    return false;
}

// A thread of the other one's block of which `t` knows something that the other one itself does not know yet: it has
// signalled without a barrier between the two. One of the same warp, if there is one.
const ThreadCheck* Checker::newer_mate(const ThreadCheck& t, const ThreadCheck* other) const {
    const ThreadCheck* found = nullptr;
    if (!other) return nullptr;
    for (const ThreadCheck& mate : other->owner->threads) {
        if (mate.id == other->id || t.known.get(mate.id) <= other->known.get(mate.id)) continue;
        found = &mate;
        if (mate.id / kWarpSize == other->id / kWarpSize) break;
    }
    return found;
}

// The line of the latest signal from `writer_rank` that the reader's block has acquired, or his rank if he is gone.
uint32_t Checker::signal_of(int reader_rank, const ThreadCheck* reader, int writer_rank, uint32_t but) const {
    const auto& all = reader ? reader->owner->heard : ranks_[reader_rank].heard;
    for (auto heard = all.rbegin(); heard != all.rend(); ++heard)
        if (heard->writer_rank == writer_rank && heard->store_pc != but) return heard->store_pc;
    return 0;
}

// Another thread of the block that is in a polling loop, one of the same warp if there is one.
const Fiber* Checker::polling_mate(const ThreadCheck& t) const {
    const Fiber* found = nullptr;
    for (const auto& block : m_.resident) {
        if (block->id != t.block) continue;
        for (const Fiber& f : block->fibers) {
            if (f.state != State::kPolling || f.check == &t) continue;
            if (!found || f.check->id / kWarpSize == t.id / kWarpSize) found = &f;
        }
    }
    return found;
}

// Somebody who reads too early while another thread of his block waits, as it should be.
bool Checker::judge_waiting_mate(const ThreadCheck* reader, uint32_t read_at, uint32_t pc, Verdict* v) const {
    if (!reader || reader->time != read_at) return false;  // it has met others since it read
    const Fiber* found = polling_mate(*reader);
    if (!found) return false;
    const bool warp = found->check->id / kWarpSize == reader->id / kWarpSize;
    v->remedy = warp ? warp_barrier(reader->owner->threads.size()) : kSyncthreads;
    v->detail = "another thread of the block waits, but this one reads without waiting for him at a barrier";
    v->certainty = warp ? 25 : 26;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = static_cast<uint32_t>(found->pc);
    v->to = pc;
    return true;
}

Checker::Verdict Checker::judge(const Conflict& c) const {
    Verdict v;
    const bool nic = !c.t.owner || ids_of(c.slot.id).nic;
    if (c.flags & c.slot.flags & kAtomic) {
        const bool staged = (c.flags ^ c.slot.flags) & kStaged;
        v.kind = staged ? "staged atomic" : "scope";
        v.remedy = staged ? "one kind of writer for a counter: NICs or GPUs"
                          : "system scope (an atomic of a narrower scope is none for other GPUs)";
        v.certainty = 50;
        v.what = staged ? "" : "make the scope that of the whole system";
        v.how = staged ? "" : "at";
        v.to = (c.flags >> kScopeShift & 3) < (c.slot.flags >> kScopeShift & 3) ? c.pc : c.slot.pc;
        return v;
    }
    if ((c.flags ^ c.slot.flags) & kAtomic && (nic || past_of(c.slot.id, c.slot.time).block != c.t.block)) {
        const bool second_is_atomic = c.flags & kAtomic;
        const bool bare = nic && ids_of(second_is_atomic ? c.slot.id : c.t.id).nic;  // a NIC brings what others poll
        v.certainty = 50;
        v.remedy = bare ? "a signal of its own behind the data (put_signal): the bytes of a put come in any order"
                        : kAtomicSignal;
        v.what = bare ? "" : "use an atomic with release or acquire, such as ep::st_release_sys or ep::ld_acquire_sys";
        v.how = bare ? "" : "at";
        v.to = second_is_atomic ? c.slot.pc : c.pc;
        return v;
    }
    return nic ? judge_nic(c) : judge_threads(c);
}

// What holds for threads and NICs alike: somebody did synchronise, but not all the way to the second access.
bool Checker::judge_synchronisation(const Conflict& c, Verdict* v) const {
    const ThreadCheck& t = c.t;
    if (!t.owner) return false;
    const Record* op = record_of(c.slot.id, c.slot.time);
    const int from_rank =
        ids_of(c.slot.id).nic ? (op->kind == NetKind::kPut ? op->source : -1) : ids_of(c.slot.id).rank;
    // Somebody beside the second thread did wait: what he acquired was not handed on.
    const ThreadCheck* waited = nullptr;
    for (const ThreadCheck& mate : t.owner->threads) {
        if (mate.id == t.id || mate.known.get(c.slot.id) < c.slot.time) continue;
        waited = &mate;
        if (mate.id / kWarpSize == t.id / kWarpSize) break;
    }
    // (In memory that was written before he may be a round ahead, and rightly so.)
    if (waited && !(c.slot.flags & kAgain)) {
        bool warp = waited->id / kWarpSize == t.id / kWarpSize;
        uint32_t wait_pc = waited->waited_pc;
        const Fiber* polls = warp ? nullptr : polling_mate(t);
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
    for (const ThreadCheck& mate : t.owner->threads)
        for (const Clock& pending : mate.pending)
            if (hint.why == Hint::kNone && pending.get(c.slot.id) >= c.slot.time)
                hint = {Hint::kNotAcquired, from_rank, 0, 0};
    if (hint.why == Hint::kNone || hint.writer_rank != from_rank || from_rank < 0) return false;
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

Checker::Verdict Checker::judge_threads(const Conflict& c) const {
    Verdict v;
    const ThreadCheck& t = c.t;
    const Slot& slot = c.slot;
    const Ids& theirs = ids_of(slot.id);
    const Past& past = past_of(slot.id, slot.time);
    const bool reads = !(c.flags & kWrites), they_read = !(slot.flags & kWrites);
    const size_t threads = past.dim.x * past.dim.y * past.dim.z;
    v.how = "between";
    v.from = slot.pc;
    v.to = c.pc;
    for (const Slot& own : c.cell.slots)  // both read, add and write back in one line
        if (!reads && !they_read && c.pc == slot.pc && own.id == t.id && own.bytes && !(own.flags & kWrites)) {
            v.remedy = "an atomic addition (atomicAdd, red_add): read, add and write back are three steps";
            v.certainty = 50;
            v.what = "use an atomic read-modify-write";
            v.how = "at";
            return v;
        }
    if (past.block == t.block) {
        const bool warp = slot.id / kWarpSize == t.id / kWarpSize;
        v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        // A write to new memory is of a first round: between the two lines there is no barrier at all.
        const bool new_memory = reads ? !(slot.flags & kAgain) : !c.again;
        v.how = new_memory ? "between_two" : "around_two";
        v.certainty = (warp ? 10 : 12) + new_memory;
        return v;
    }
    const bool crosses = theirs.rank != t.rank;
    if (judge_synchronisation(c, &v)) return v;
    const ThreadCheck* other = running(slot.id, past.block);
    const ThreadCheck* newer = newer_mate(t, other);
    uint32_t mate = newer ? newer->id : slot.id;
    if (!other && !they_read &&
        t.known.get(slot.id) < past.since)  // the writer's block is gone: has any of it signalled?
        for (uint32_t i = 0; i < threads; i++)
            if (t.known.get(theirs.first + i) >= past.since &&
                (mate == slot.id || (theirs.first + i) / kWarpSize == slot.id / kWarpSize))
                mate = theirs.first + i;
    // Who writes where he has written before may have come here after the signal, and a round too early.
    if (mate != slot.id && (they_read || !(slot.flags & kAgain))) {
        const bool warp = mate / kWarpSize == slot.id / kWarpSize;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.to = signal_of(t.rank, &t, theirs.rank, 0);
        if (they_read) {
            v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
            v.detail = kCreditOfMate;
            v.how = "before_credit";
        } else {
            v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
            v.detail =
                "another thread of the writer's block has signalled; its release covers the writer's work only after a "
                "barrier";
            if (!v.to) v.how = "after";
        }
        return v;
    }
    const bool again = they_read ? c.again : (slot.flags & kAgain) != 0;
    if (they_read) {
        v.what = "";
        if (crosses && again) {
            v.kind = kReused;
            v.remedy = kCredit;
            v.certainty = 21;
            v.how = "credit";
            return v;
        }
        v.certainty = 22;
        v.how = "wait";
        v.to = slot.pc;
        if (other && knows_of_block(*other, t)) {
            v.remedy = crosses ? "data before its signal, or credit before reuse" : kReleaseAcquire;
            v.detail = "the reader has heard from the writer, but of something before this write";
            v.how = "";
            return v;
        }
        if (judge_waiting_mate(other, slot.time, slot.pc, &v)) return v;
        v.detail = "the reader has not waited for the writer, or only another thread of its block has";
        v.remedy = kWaitFirst;
        return v;
    }
    v.what = "";
    v.certainty = 20;
    v.how = "";
    if (!reads) {
        v.remedy = crosses ? "credit before reuse, or a place of its own for each writer" : kReleaseAcquire;
    } else if (t.known.get(slot.id) < past.since) {
        if (!again && judge_waiting_mate(&t, t.time, c.pc, &v)) return v;
        v.remedy = kWait;
        v.certainty = again ? 20 : 22;
        v.how = "wait";
    } else if (crosses) {
        v.kind = again ? kReused : "race";
        v.remedy = again ? kCredit : kDataFirst;
        v.certainty = again ? 21 : 23;
        v.detail =
            again ? "the writer has signalled before, and has written since: either it did not wait until the reader "
                    "was done, or the reader has not waited for this write"
                  : "the writer has signalled, and has written since";
        v.how = again ? "credit_late" : "swap";
        v.from = again ? slot.pc : signal_of(t.rank, &t, theirs.rank, 0);
        v.to = again ? c.pc : slot.pc;
    } else {
        v.remedy = kReleaseAcquire;
    }
    return v;
}

}  // namespace epemu

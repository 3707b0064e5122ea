// Judges conflicts between threads, with a host, and of atomics: which mistake it is, which synchronisation is missing,
// and where to put it.
//
// One occurrence seldom decides. A lane that reads before lane 0's wait looks like one that reads behind it; but if
// lane 0 has acquired the data and the lane has not, a barrier is missing. So each occurrence has a certainty, and the
// surest is reported:
//
//   10  threads of one warp (12: of one block) with nothing in between; one more if that must be so in the first round.
//       Less sure than the same lines across blocks
//   20  only known: the two are unordered
//   21  memory that was used before: most likely again too early
//   22  memory that was not used before, and a thread that has not waited at all
//   23  ... that has acquired something else from the writer: the signal came before the data
//   24  ... that has acquired the writer's actions after its post: the signal overtook the data
//   25  ... while a thread of the same block (26: warp) still waits
//   30  a signal in between without release, acquire or enough scope
//   31  a thread of the same warp (32: block) is ordered and this one is not
//   50  no order would help: atomics are missing or mixed with plain accesses
#include <algorithm>
#include <set>

#include "checker.hpp"
#include "checker_findings.hpp"
#include "machine.hpp"
#include "network.hpp"

namespace epemu {

const ThreadCheck* Checker::running(uint32_t id, uint64_t block) const {
    for (const auto& b : m_.resident)
        if (b->id == block && b->check) return &b->check->threads[id - b->check->first_id];
    return nullptr;
}

// Whether any publication of `other`'s block has reached this thread.
bool Checker::knows_of_block(const ThreadCheck& t, const ThreadCheck& other) const {
    const uint32_t since = past_of(other.id, other.time).since;
    for (const ThreadCheck& sibling : other.owner->threads)
        if (happens_before(sibling.id, since, t.clock)) return true;
    return false;
}

// Whether `t` has heard of another block of the launch that `past` is of.
bool Checker::knows_of_other_block(const ThreadCheck& t, const Past& past) const {
    for (const Ids& ids : ids_) {
        if (ids.nic || ids.host || ids.rank != past.rank) continue;
        for (const Past& there : ids.past) {
            if (there.launch != past.launch || there.block == past.block) continue;
            for (uint32_t id = ids.first; id < ids.first + ids.count; id++)
                if (happens_before(id, there.since, t.clock)) return true;
        }
    }
    return false;
}

// A thread of `other`'s block about which `t` knows more than `other` does: it has signalled without a barrier between
// the two. Preferably one of the same warp.
const ThreadCheck* Checker::sibling_ahead(const ThreadCheck& t, const ThreadCheck* other) const {
    const ThreadCheck* found = nullptr;
    if (!other) return nullptr;
    for (const ThreadCheck& sibling : other->owner->threads) {
        if (sibling.id == other->id || t.clock.get(sibling.id) <= other->clock.get(sibling.id)) continue;
        found = &sibling;
        if (sibling.id / kWarpSize == other->id / kWarpSize) break;
    }
    return found;
}

// The line of the latest signal from `writer_rank` that the reader's block (if it has ended: its rank) has acquired.
uint32_t Checker::signal_of(int reader_rank, const ThreadCheck* reader, int writer_rank, uint32_t but,
                            uint32_t* wait) const {
    const auto& all = reader ? reader->owner->acquired : ranks_[reader_rank].acquired;
    for (auto signal = all.rbegin(); signal != all.rend(); ++signal)
        if (signal->writer_rank == writer_rank && signal->store_pc != but) {
            if (wait) *wait = signal->load_pc;
            return signal->store_pc;
        }
    return 0;
}

// Another thread of the block that is in a polling loop, preferably one of the same warp.
const Fiber* Checker::polling_sibling(const ThreadCheck& t) const {
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

// The reader may take whichever version it finds: then it may never read the one that a credit would be for.
void Checker::judge_version(const SyncLoad* look, uint64_t reader_block, uint32_t read, uint32_t write,
                            Verdict* v) const {
    if (!look || v->signal || witness.stores_to(reader_block, look->id, look->address)) return;
    v->how = "credit_or_count";
    v->from = read;
    v->to = write;
    v->signal = look->seen.pc;
    v->wait = look->pc;
}

// A thread reads too early, while another thread of its block correctly waits.
bool Checker::judge_waiting_sibling(const ThreadCheck* reader, uint32_t read_at, uint32_t pc, Verdict* v) const {
    if (!reader || reader->time != read_at) return false;  // it has met others since it read
    const Fiber* found = polling_sibling(*reader);
    if (!found) return false;
    std::set<uint32_t> waiting;  // warps of the block that wait in this line
    for (const SyncLoad* look : witness.loads_of(reader->block))
        if (look->pc == static_cast<uint32_t>(found->pc)) waiting.insert(look->id / kWarpSize);
    const bool each = waiting.size() > 1;  // each warp waits for itself
    const bool warp = each || found->check->id / kWarpSize == reader->id / kWarpSize;
    v->remedy = warp ? warp_barrier(reader->owner->threads.size()) : kSyncthreads;
    v->detail = "another thread of the block waits, but this one reads without waiting for it at a barrier";
    v->certainty = each ? 27 : warp ? 25 : 26;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = static_cast<uint32_t>(found->pc);
    v->to = pc;
    return true;
}

// At least one side is a host's Python.
Checker::Verdict Checker::judge_host(const Conflict& c) const {
    Verdict v;
    v.certainty = 45;
    const bool by_nic = ids_of(c.t.id).nic || ids_of(c.slot.id).nic;
    if (by_nic) {
        if (!((ids_of(c.t.id).nic ? c.flags : c.slot.flags) & kWrites)) v.kind = "source reused";
        v.remedy =
            "a quiet in the kernel that posts this, before it ends (and rank.barrier() before another rank's host goes "
            "on): neither the end of a kernel nor a barrier of hosts waits for NICs";
    } else if (ids_of(c.t.id).rank == ids_of(c.slot.id).rank) {
        const bool waits = (ids_of(c.t.id).host ? c.slot.flags : c.flags) & (kAtomic | kVolatile);
        v.remedy =
            waits ? "memory that hosts and kernels share, from rank.host_array(), if the kernel is to see what the "
                    "host does while it runs; else rank.synchronize() between the launch and what the host does"
                  : "rank.synchronize() between the launch and what the host does";
    } else {
        v.remedy =
            "rank.barrier() between what the host does and the other rank's kernel: rank.synchronize() waits for the "
            "kernels of its own rank";
    }
    return v;
}

Checker::Verdict Checker::judge(const Conflict& c) const {
    if (ids_of(c.t.id).host || ids_of(c.slot.id).host) return judge_host(c);
    Verdict v;
    const Record* first = ids_of(c.slot.id).nic ? record_of(c.slot.id, c.slot.time) : nullptr;
    const Record* second = c.t.owner ? nullptr : record_of(c.t.id, c.t.time);
    if (is_copy(first) || is_copy(second)) return judge_copy(c, first, second);
    const bool nic = !c.t.owner || ids_of(c.slot.id).nic;
    if (c.flags & c.slot.flags & kAtomic) {
        if (c.bytes == c.slot.bytes && (c.flags & c.slot.flags & kVolatile)) {  // plain_volatile is on
            if (!nic && past_of(c.slot.id, c.slot.time).block == c.t.block) {
                v = judge_threads(c);
            } else if (!judge_hand_over(c, &v, false) && !judge_one_sided_lock(c, &v)) {
                v.remedy = "release/acquire or a fence on both sides, or a barrier: volatile orders nothing";
                v.certainty = 20;
                v.from = c.slot.pc;
                v.to = c.pc;
            }
            v.kind = "volatile";
            return v;
        }
        const bool staged = (c.flags & c.slot.flags & kWrites) && ((c.flags ^ c.slot.flags) & kStaged);
        v.certainty = 50;
        if (c.bytes != c.slot.bytes && !staged) {
            v.kind = "width";
            v.remedy = "one width for all atomics on a location";
            v.what = "make both atomics of one width";
            v.how = c.pc == c.slot.pc ? "at" : "both";
            v.from = c.slot.pc;
            v.to = c.pc;
            return v;
        }
        const int needed = nic ? static_cast<int>(EPEMU_SCOPE_SYSTEM)
                               : scope_between(c.t, ids_of(c.slot.id).rank, past_of(c.slot.id, c.slot.time).block);
        v.kind = staged ? "staged atomic" : "scope";
        v.remedy = staged ? "one kind of writer for a counter: NICs or GPUs"
                          : std::string("scope: ") + kScopes[needed] + " is the smallest that reaches a thread " +
                                kOtherIs[needed] + (needed == EPEMU_SCOPE_SYSTEM ? " (the system)" : " (the device)");
        v.what = staged ? "let only one kind add there" : std::string("give it the scope ") + kScopes[needed];
        v.how = staged ? "both" : "at";
        v.from = c.slot.pc;
        v.to = staged ? c.pc : (c.flags >> kScopeShift & 3) < (c.slot.flags >> kScopeShift & 3) ? c.pc : c.slot.pc;
        return v;
    }
    if ((c.flags ^ c.slot.flags) & kAtomic && (nic || past_of(c.slot.id, c.slot.time).block != c.t.block)) {
        const bool second_is_atomic = c.flags & kAtomic;
        const uint32_t atomic_pc = second_is_atomic ? c.pc : c.slot.pc, plain_pc = second_is_atomic ? c.slot.pc : c.pc;
        const bool by_nic = nic && ids_of(second_is_atomic ? c.slot.id : c.t.id).nic;
        const bool plain_writes = (second_is_atomic ? c.slot.flags : c.flags) & kWrites;
        const bool atomic_writes = (second_is_atomic ? c.flags : c.slot.flags) & kWrites;
        v.certainty = 50;
        v.how = "at";
        v.to = plain_pc;
        if (!by_nic) {
            v.remedy = kAtomicSignal;
            v.what = "use an atomic with release or acquire, such as ep::st_release_sys or ep::ld_acquire_sys";
            v.mixed = true;
            v.sets_flag = atomic_writes && !plain_writes;
            v.wait = atomic_pc;
        } else if (!plain_writes) {  // a NIC reads data that a thread writes
            v.remedy = "wait (acquire) for a signal of the thread that sets it, before the post that reads it";
            v.how = "wait_post";
            v.from = atomic_pc;
        } else if (atomic_writes) {
            v.remedy = "one kind of writer: a NIC brings bytes where threads use atomics";
            v.what = "let only one of them write there";
            v.how = "both";
            v.from = atomic_pc;
        } else {  // a NIC writes data that a thread polls
            v.remedy = "a signal of its own behind the data (put_signal): the bytes of a put come in any order";
            v.what = "wait for that signal, not for the data itself,";
            v.to = atomic_pc;
        }
        return v;
    }
    return nic ? judge_nic(c) : judge_threads(c);
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
    if (judge_hand_over(c, &v, false) || judge_one_sided_lock(c, &v)) {
        if (reads && !they_read && !v.lock) note_wait(c, true, &v);
        return v;
    }
    const bool writes_both = !reads && !they_read && c.pc == slot.pc;  // both read, add and write back in one line
    if (writes_both && has_just_read(c) && !sibling_ahead(t, running(slot.id, past.block))) {
        v.certainty = 50;
        v.how = "at";
        const uint32_t look = witness.looks_at(t.block, t.id, past.block, slot.id);
        if (look && witness.looks_at(past.block, slot.id, t.block, t.id)) {  // each at what the other one stores
            v.detail = kStoresAndLooks;
            v.remedy = kOneAtomicLock;
            v.what = "take such a lock instead of the look";
            v.to = look;
            return v;
        }
        v.remedy = "one atomic operation (atomicAdd, atomicMax, red_add): read, change and write back are three steps";
        v.what = "use an atomic read-modify-write";
        return v;
    }
    const bool by_flags = past.block == t.block && hand_over_by_flags(t, slot.id, c.address);
    const ThreadCheck* const there = past.block == t.block ? running(slot.id, past.block) : nullptr;
    if (there && !by_flags && t.met_by_number && there->met_by_number) {
        const bool reuse = they_read || (slot.flags & kAgain);
        if (reuse && !(reads && they_read)) v.kind = kReused;
        v.remedy = reuse ? kMeetAgain : "a barrier by number between the two, which both pass";
        v.how = reuse ? "named_again" : "named";
        v.what = "";
        v.from = they_read ? slot.pc : c.pc;
        v.to = they_read ? c.pc : slot.pc;
        v.certainty = 14;
        return v;
    }
    if (past.block == t.block && !by_flags) {
        const bool warp = slot.id / kWarpSize == t.id / kWarpSize;
        v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        // A write to new memory is in the first round: there is no barrier at all between the two lines.
        const bool new_memory = reads ? !(slot.flags & kAgain) : !c.again;
        v.how = new_memory ? "between_two" : "around_two";
        v.certainty = (warp ? 10 : 12) + new_memory;
        return v;
    }
    const bool crosses = theirs.rank != t.rank || by_flags;
    if (judge_synchronisation(c, &v)) return v;
    const ThreadCheck* other = running(slot.id, past.block);
    if (they_read && judge_stale(other, past_of(t.id, t.time), &v)) return v;
    if (!they_read && reads && judge_stale(&t, past, &v)) return v;
    const ThreadCheck* newer = by_flags ? nullptr : sibling_ahead(t, other);
    uint32_t sibling = newer ? newer->id : slot.id;
    if (!other && !they_read &&
        !happens_before(slot.id, past.since, t.clock))  // the writer's block is gone: did any of its threads signal?
        for (uint32_t i = 0; i < threads; i++)
            if (happens_before(theirs.first + i, past.since, t.clock) &&
                (sibling == slot.id || (theirs.first + i) / kWarpSize == slot.id / kWarpSize))
                sibling = theirs.first + i;
    // The reader's last wait, if that was for a signal that the writer itself has sent, too early.
    const uint32_t reader = reads ? t.id : slot.id, writer = reads ? slot.id : t.id;
    const SyncLoad* own_signal = nullptr;
    for (const SyncLoad* l : witness.loads_of(reads ? t.block : past.block)) {
        if (reads == they_read || l->id != reader || !l->seen.pc || l->time > (reads ? t.time : slot.time)) continue;
        if (l->is_of(c.address)) continue;  // an update of the data itself
        if (l->seen.id == writer && l->seen.block == (reads ? past.block : t.block)) own_signal = l;
        break;
    }
    // A thread that writes where it has written before may have come here after the signal, and a round too early.
    if (sibling != slot.id && !own_signal && (they_read || !(slot.flags & kAgain))) {
        const bool warp = sibling / kWarpSize == slot.id / kWarpSize;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.to = signal_of(t.rank, &t, theirs.rank, 0);
        if (!they_read) {
            v.unsettled = {true, past.block, slot.id, slot.time, t.block, c.pc};
        }
        if (they_read) {
            v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
            v.detail = kCreditOfSibling;
            v.how = "before_credit";
        } else {
            v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
            v.detail =
                "another thread of the writer's block has signalled; its release covers the writer's work only after a "
                "barrier";
            // A whole warp at most: of more, the writer may be one.
            if (!warp && past.few && past.few <= kWarpSize && past.first_of_few / kWarpSize == sibling / kWarpSize) {
                v.remedy = kDivergentBarrier;
                v.detail += " of both, and at its last one met " + std::to_string(past.few) + " of " +
                            std::to_string(threads) + " threads";
            }
            v.how = v.to ? "before_signal" : "after";
        }
        return v;
    }
    if (judge_hand_over(c, &v, true)) {
        if (reads && !they_read) note_wait(c, true, &v);
        return v;
    }
    if (!crosses && past.launch == past_of(t.id, t.time).launch && witness.have_met(past.block, t.block)) {
        v.remedy = kGridBarrier;
        v.what = "a barrier of the grid";
        v.how = "around_two";
        v.certainty = 24;
        return v;
    }
    const bool again = they_read ? c.again : (slot.flags & kAgain) != 0;
    if (they_read) {
        v.what = "";
        const bool hears = other && knows_of_block(*other, t);
        if ((crosses || hears || own_signal) && again) {
            v.kind = kReused;
            v.remedy = kCredit;
            v.certainty = 21;
            v.how = "credit";
            judge_old_credit(t, slot.id, past.block, &v);
            judge_version(own_signal, past.block, slot.pc, c.pc, &v);
            return v;
        }
        v.certainty = 22;
        if (own_signal) {
            v.remedy = kDataFirst;
            v.detail = "the reader has waited for a signal of this thread, which it had sent before it wrote";
            v.how = "swap";
            v.from = own_signal->seen.pc;
            v.to = c.pc;
            v.wait = own_signal->pc;
            v.unsettled = {true, t.block, t.id, t.time, past.block, slot.pc};
            v.in_one_rank = !crosses;
            return v;
        }
        v.how = "wait";
        v.to = slot.pc;
        if (hears) {
            v.remedy = crosses ? "data before its signal, or credit before reuse" : kReleaseAcquire;
            v.detail = "the reader has acquired a signal of the writer, but an earlier one than this write";
            v.how = "";
            return v;
        }
        if (judge_waiting_sibling(other, slot.time, slot.pc, &v)) return v;
        v.detail = "the reader has not waited for the writer, or only another thread of its block has";
        v.remedy = kWaitFirst;
        return v;
    }
    v.what = "";
    v.certainty = 20;
    v.how = "";
    if (!reads) {
        v.remedy = crosses ? "credit before reuse, or a place of its own for each writer"
                           : "a place of its own for each block (check the index), or release/acquire between them";
        v.how = "own";
    } else if (!own_signal && !happens_before(slot.id, past.since, t.clock)) {
        if (!again && judge_waiting_sibling(&t, t.time, c.pc, &v)) return v;
        v.remedy = kWait;
        v.certainty = again ? 20 : 22;
        v.how = "wait";
        note_wait(c, false, &v);
        if (crosses && knows_of_other_block(t, past))
            v.detail = "another block of the writer's kernel has signalled, which speaks for that block's work only";
    } else if (crosses || own_signal) {
        v.kind = again ? kReused : "race";
        v.remedy = again ? kCredit : kDataFirst;
        v.certainty = again ? 21 : 23;
        v.detail =
            again ? "the writer has signalled before, and has written since: either it did not wait until the reader "
                    "was done, or the reader has not waited for this write"
                  : "the writer has signalled, and has written since";
        v.how = again ? "credit_late" : "swap";
        v.from = again ? slot.pc : signal_of(t.rank, &t, theirs.rank, 0, &v.wait);
        if (own_signal && !again) v.from = own_signal->seen.pc, v.wait = own_signal->pc;
        v.to = again ? c.pc : slot.pc;
        v.unsettled = {!again, past.block, slot.id, slot.time, t.block, c.pc};
        v.in_one_rank = !crosses;
        if (again && judge_needless_wait(past.block, slot.id, slot.time, witness.waits_of(t.block), &v))
            v.to = slot.pc;
        else if (again)
            judge_version(own_signal, t.block, c.pc, slot.pc, &v);
    } else {
        v.remedy = kReleaseAcquire;
    }
    return v;
}

}  // namespace epemu

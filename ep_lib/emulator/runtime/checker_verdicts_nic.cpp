// What a conflict means where one side at least is an operation of a NIC. How sure each verdict is: checker_verdicts.cpp.
#include "checker.hpp"
#include "network.hpp"
#include "remedies.hpp"

namespace epemu {

// One side at least is an operation of a NIC.
Checker::Verdict Checker::judge_nic(const Conflict& c) const {
    Verdict v;
    const Slot& slot = c.slot;
    const Record* first = record_of(slot.id, slot.time);
    const Record* second = c.t.owner ? nullptr : record_of(c.t.id, c.t.time);
    v.from = slot.pc;
    v.to = c.pc;
    v.how = "between";
    if (first && (slot.flags & kWrites)) return judge_nic_wrote(c, *first);
    const bool heard_of_post = first && c.t.known.get(first->poster_id) >= first->poster_time;
    if (first && !c.again && !heard_of_post && judge_early_post(*first, c.t.id, c.t.block, c.pc, slot.pc, &v)) return v;
    if (first) {
        if (judge_synchronisation(c, &v)) return v;
        v.kind = "source reused";
        v.what = "a quiet";
        v.certainty = 22;
        if (second && second->poster.rank != first->poster.rank) {  // sent on before it came, or again while it leaves
            v.kind = c.again ? kReused : "race";
            v.remedy = c.again ? kCredit : "wait (acquire) for the data before it is sent on";
            v.how = c.again ? "credit_late" : "wait";
            v.from = c.pc;
            v.to = slot.pc;
        } else if (c.t.owner && c.t.rank != first->poster.rank) {  // somebody gets it, and its owner is too early
            v.remedy = heard_of_post ? "quiet between the get and the signal that it is done" : kCredit;
            v.to = heard_of_post ? signal_of(c.t.rank, &c.t, first->poster.rank, slot.pc) : slot.pc;
            v.from = heard_of_post ? slot.pc : c.pc;
            v.how = heard_of_post ? "between" : "credit_late";
        } else {
            v.remedy = first->signal && first->data
                           ? "quiet before reuse of the source (or wait for a credit from its receiver)"
                           : "quiet before reuse of the source";
        }
        return v;
    }
    if (c.flags & kWrites) return judge_nic_writes(c, *second);
    const uint64_t writer = past_of(slot.id, slot.time).block;
    if (judge_early_post(*second, slot.id, writer, slot.pc, c.pc, &v)) {
        if (slot.flags & kAgain) {  // or changed again too early
            v.certainty -= 6;
            v.how = "around_two";
        }
        return v;
    }
    v.remedy = "release/acquire or a barrier before the post";
    v.certainty = 20;
    v.how = "";
    return v;
}

// One thread posts what another one of its block writes.
bool Checker::judge_early_post(const Record& post, uint32_t writer, uint64_t block, uint32_t write_pc, uint32_t post_pc,
                               Verdict* v) const {
    const Past& past = past_of(post.poster_id, post.poster_time);
    if (block != past.block || writer == post.poster_id) return false;
    const bool warp = writer / kWarpSize == post.poster_id / kWarpSize;
    v->remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
    v->detail = "the NIC is told to send what another thread of the block writes, and no barrier comes between them";
    v->certainty = warp ? 31 : 32;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = write_pc;
    v->to = post_pc;
    return true;
}

// A NIC has written, and now somebody reads or writes there.
Checker::Verdict Checker::judge_nic_wrote(const Conflict& c, const Record& first) const {
    Verdict v;
    const ThreadCheck& t = c.t;
    const Record* second = t.owner ? nullptr : record_of(t.id, t.time);
    v.from = c.slot.pc;
    v.to = c.pc;
    if (judge_synchronisation(c, &v)) return v;
    v.certainty = 22;
    if (first.kind == NetKind::kGet) {
        v.kind = "read before arrival";
        v.remedy = "quiet before what a get brings is read";
        v.what = "a quiet";
        v.how = "between";
        return v;
    }
    const bool after_post = t.known.get(first.poster_id) >= first.poster_time;
    if (second && (c.flags & kWrites)) {
        const bool same_line = c.pc == c.slot.pc && second->source == first.source;
        v.certainty = 21;
        if (second->source != first.source) {
            v.remedy = "a place of its own for each sender, or credit before reuse";
        } else if (same_line || (first.signal && second->signal)) {
            v.kind = kReused;
            v.remedy = kCredit;
            v.how = "credit_put";
        } else {
            v.remedy = "quiet or fence between the operations";
            v.what = "a quiet or fence";
            v.how = "between";
        }
        return v;
    }
    const bool heard = t.known.get(first.poster_id) >= past_of(first.poster_id, first.poster_time).since;
    const ThreadCheck* reader = t.owner ? &t : nullptr;
    if (after_post && !first.signal) {
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.certainty = 24;
        v.what = "a quiet (or a fence)";
        v.to = signal_of(t.rank, reader, first.source, c.slot.pc);
        v.how = "between";
    } else if (after_post) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
        v.certainty = 23;
    } else if (c.slot.flags & kAgain) {
        v.kind = kReused;
        v.remedy = kCredit;
        v.certainty = 21;
        v.how = "credit_late";
    } else if (judge_waiting_mate(reader, t.time, c.pc, &v)) {
        return v;
    } else if (heard && first.signal) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
    } else if (heard) {
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.certainty = 23;
        v.from = signal_of(t.rank, reader, first.source, 0);
        v.to = c.slot.pc;
        v.how = "swap";
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

// A NIC writes where a thread has been.
Checker::Verdict Checker::judge_nic_writes(const Conflict& c, const Record& second) const {
    Verdict v;
    const Slot& slot = c.slot;
    v.from = slot.pc;
    v.to = c.pc;
    const Past& past = past_of(slot.id, slot.time);
    const ThreadCheck* reader = running(slot.id, past.block);
    if (const ThreadCheck* mate = newer_mate(c.t, reader)) {
        const bool warp = mate->id / kWarpSize == slot.id / kWarpSize;
        const ThreadCheck* poster = running(second.poster_id, past_of(second.poster_id, second.poster_time).block);
        v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
        v.detail = kCreditOfMate;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.how = "before_credit";
        v.to = signal_of(second.poster.rank, poster, ids_of(slot.id).rank, 0);
        return v;
    }
    v.certainty = 21;
    if (slot.flags & kWrites) {
        v.remedy = "credit before reuse, or a barrier of all ranks: the owner writes there too";
        return v;
    }
    if (second.kind == NetKind::kGet) {
        v.kind = "read before arrival";
        v.remedy = "quiet before what a get brings is read";
        v.certainty = 22;
        v.what = "a quiet";
        v.how = "between";
        v.from = c.pc;
        v.to = slot.pc;
        return v;
    }
    if (c.again) {
        v.kind = kReused;
        v.remedy = kCredit;
        v.how = "credit";
        return v;
    }
    // Read before it was ever written: too early.
    const int rank = ids_of(slot.id).rank;
    const Clock& known = reader ? reader->known : ranks_[rank].stream;
    const bool heard = known.get(second.poster_id) >= past_of(second.poster_id, second.poster_time).since;
    v.certainty = 22;
    v.to = slot.pc;
    if (known.get(second.poster_id) >= second.poster_time && !second.signal) {
        v.certainty = 24;
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.from = c.pc;
        v.to = signal_of(rank, reader, second.source, c.pc);
        v.what = "a quiet (or a fence)";
        v.how = "between";
    } else if (judge_waiting_mate(reader, slot.time, slot.pc, &v)) {
        return v;
    } else if (heard && second.signal) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
    } else if (heard) {
        v.certainty = 23;
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.from = signal_of(rank, reader, second.source, 0);
        v.to = c.pc;
        v.how = "swap";
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

}  // namespace epemu

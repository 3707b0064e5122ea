// Conflicts with an operation of a NIC on at least one side.
#include <algorithm>
#include <utility>

#include "checker.hpp"
#include "checker_findings.hpp"
#include "machine.hpp"
#include "network.hpp"

namespace epemu {

// At least one side is an operation of a NIC.
Checker::Verdict Checker::judge_nic(const Conflict& c) const {
    Verdict v;
    const Slot& slot = c.slot;
    const Record* first = record_of(slot.id, slot.time);
    const Record* second = c.t.owner ? nullptr : record_of(c.t.id, c.t.time);
    v.from = slot.pc;
    v.to = c.pc;
    v.how = "between";
    if (first && (slot.flags & kWrites)) return judge_nic_wrote(c, *first);
    const bool knows_of_post = first && happens_before(first->poster_id, first->poster_time, c.t.clock);
    if (first && !c.again && !knows_of_post && judge_early_post(*first, c.t.id, c.t.block, c.pc, slot.pc, &v)) return v;
    if (first) {
        if (judge_synchronisation(c, &v)) return v;
        v.kind = "source reused";
        v.what = "a quiet";
        v.certainty = 22;
        if (!c.again && !knows_of_post && c.t.owner && c.t.rank == first->poster.rank) {  // the source was not ready
            v.kind = "race";
            v.remedy = "release/acquire (or a barrier) between the block that writes the source and the post";
            v.how = "wait_post";
            v.from = c.pc;
            v.to = slot.pc;
            return v;
        }
        const int writer_rank = second ? second->poster.rank : c.t.rank;
        if (writer_rank != first->poster.rank && knows_of_post) {  // it was told that it may write, too early
            const ThreadCheck* writer =
                second ? running(second->poster_id, past_of(second->poster_id, second->poster_time).block) : &c.t;
            v.remedy = first->kind == NetKind::kGet ? "quiet between the get and the signal that it is done"
                                                    : "quiet between the put from a slot and the credit for the slot";
            v.to = signal_of(writer_rank, writer, first->poster.rank, slot.pc);
            v.how = v.to ? "between" : "after";
        } else if (second && second->poster.rank != first->poster.rank) {  // another rank's operation writes there
            v.kind = c.again ? kReused : "race";
            v.remedy = c.again ? kCredit
                       : first->kind == NetKind::kGet
                           ? "wait (acquire) for a signal that the data has come, before the get"
                           : "wait (acquire) for the data before it is sent on";
            v.how = c.again ? "credit_late" : "wait";
            v.from = c.pc;
            v.to = slot.pc;
        } else if (c.t.owner && c.t.rank != first->poster.rank) {  // a get by another rank: the owner writes too early
            v.remedy = kCredit;
            v.to = slot.pc;
            v.from = c.pc;
            v.how = "credit_late";
        } else if (first->signal && first->data) {
            v.remedy = "quiet before reuse of the source (or wait for a credit from its receiver)";
        } else if (c.t.owner && c.t.id != first->poster_id &&
                   c.t.block == past_of(first->poster_id, first->poster_time).block) {
            const bool warp = c.t.id / kWarpSize == first->poster_id / kWarpSize;
            v.remedy = std::string("quiet before reuse of the source, and ") + (warp ? "__syncwarp" : "__syncthreads") +
                       " behind it: the thread that posts is not the one that writes";
            v.what = std::string("a quiet, and ") + (warp ? "__syncwarp()" : "__syncthreads()") + " behind it,";
            v.poster_may_wait = true;
        } else {
            v.remedy = "quiet before reuse of the source";
        }
        return v;
    }
    if (c.flags & kWrites) return judge_nic_writes(c, *second);
    const uint64_t writer = past_of(slot.id, slot.time).block;
    if (judge_early_post(*second, slot.id, writer, slot.pc, c.pc, &v)) {
        if (slot.flags & kAgain) {  // or the source was changed too early
            v.certainty -= 6;
            v.how = "around_two";
            v.poster_may_wait = true;
        }
        return v;
    }
    v.remedy = "release/acquire or a barrier before the post";
    v.certainty = 20;
    v.how = "wait_post";
    return v;
}

// The quiet in which the thread that has posted this waits for it, before it posts anything else with data.
const NetOrder* Checker::quiet_behind(const Record& post) const {
    const NetOrder* o = witness.ordered_since(post.poster_id, post.poster_time);
    if (!o || !o->quiet || !o->covers(post.target, post.queue_pair)) return nullptr;
    const auto between = [&](const Record& r) {
        return r.data && r.poster_id == post.poster_id && post.poster_time < r.poster_time && r.poster_time < o->time;
    };
    return std::any_of(records_.begin(), records_.end(), between) ? nullptr : o;
}

// One thread posts data that another thread of its block writes.
bool Checker::judge_early_post(const Record& post, uint32_t writer, uint64_t block, uint32_t write_pc, uint32_t post_pc,
                               Verdict* v) const {
    const Past& past = past_of(post.poster_id, post.poster_time);
    if (block != past.block || writer == post.poster_id) return false;
    const bool warp = writer / kWarpSize == post.poster_id / kWarpSize;
    v->remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
    v->detail = "the post sends what another thread of the block writes, and no barrier comes between them";
    v->certainty = warp ? 31 : 32;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = write_pc;
    v->to = post_pc;
    return true;
}

// The poster has a quiet or a fence behind this put, but for another peer or queue pair, or useless to the signal.
void Checker::judge_other_queue(const Record& put, Verdict* v) const {
    const NetOrder* o = witness.ordered_since(put.poster_id, put.poster_time);
    if (!o) return;
    const char* name = o->quiet ? "quiet" : "fence";
    const bool peer = o->target < 0 || o->target == put.target;
    if (peer && (o->queue_pair < 0 || o->queue_pair == put.queue_pair)) {
        v->detail = std::string("the ") + name + " between the two orders one queue pair, and the signal takes another";
        v->remedy = "the signal on the queue pair of its data, or a quiet between the two";
        v->what = "a quiet";
        return;
    }
    v->detail =
        std::string("the ") + name + " between the two is for " +
        (peer ? "queue pair " + std::to_string(o->queue_pair) + ", and this put is on queue pair " +
                    std::to_string(put.queue_pair)
              : "rank " + std::to_string(o->target) + ", and this put goes to rank " + std::to_string(put.target));
    v->remedy = peer ? "a fence or a quiet of all queue pairs that have puts, before the signal"
                     : std::string("a ") + name + " for the rank of each put, before the signal";
    v->what = !peer      ? std::string("one more ") + name + " for the rank of the put"
              : o->quiet ? "one more quiet for queue pair " + std::to_string(put.queue_pair)
                         : "name no queue pair (net_fence(peer): all of them)";
    v->how = "at";
    v->to = o->pc;
}

// The reader has heard of a quiet or a fence of another thread of the poster's block, which came too early for this put.
bool Checker::judge_beside(const Record& put, const VectorClock& known, uint32_t put_pc, const Unsettled& u,
                           Verdict* v) const {
    const NetOrder& o = put.beside;
    if (put.signal || !o.pc || !happens_before(o.id, o.time, known)) return false;
    const Past& past = past_of(put.poster_id, put.poster_time);
    const bool warp = o.id / kWarpSize == put.poster_id / kWarpSize;
    const auto thread = [&](uint32_t id) { return std::to_string(id - ids_of(id).first); };
    v->kind = kOvertakes;
    v->remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
    v->detail = "the " + std::string(o.quiet ? "quiet" : "fence") + " of thread " + thread(o.id) +
                " does not cover what thread " + thread(put.poster_id) + " posts beside it";
    v->certainty = warp ? 31 : 32;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = put_pc;
    v->to = o.pc;
    v->unsettled = u;  // its block may still signal: then the reader has waited for another round's signal
    return true;
}

// The reader has heard of another thread of the poster's block, and nothing of this one: no barrier is between the put
// and that thread's signal, nor a quiet.
bool Checker::judge_signal_of_sibling(const Record& put, const VectorClock& known, uint32_t put_pc, uint32_t signal,
                                      const Unsettled& u, Verdict* v) const {
    const Past& past = past_of(put.poster_id, put.poster_time);
    if (put.signal || !signal || happens_before(put.poster_id, past.since, known)) return false;
    const uint32_t first = ids_of(put.poster_id).first, threads = past.dim.x * past.dim.y * past.dim.z;
    uint32_t sibling = first;
    while (sibling < first + threads && !happens_before(sibling, past.since, known)) sibling++;
    if (sibling == first + threads) return false;
    const bool warp = sibling / kWarpSize == put.poster_id / kWarpSize;
    v->kind = kOvertakes;
    v->remedy = std::string("a quiet of the thread that posts, and behind it ") +
                (warp ? "__syncwarp" : "__syncthreads") + ", before another thread signals";
    v->detail = "thread " + std::to_string(put.poster_id - first) + " posts and thread " +
                std::to_string(sibling - first) +
                " of its block signals, with neither a quiet nor a barrier in between";
    v->certainty = warp ? 31 : 32;
    v->what = std::string("a quiet, then ") + (warp ? "__syncwarp()" : "__syncthreads()");
    v->how = "between";
    v->from = put_pc;
    v->to = signal;
    v->unsettled = u;  // its block may still signal: then the reader has waited for another round's signal
    v->unsettled.in_any_line = true;
    return true;
}

// The reader has not acquired the signal that comes with the put.
void Checker::judge_each_signal(const Record& put, const VectorClock& known, uint32_t put_pc, Verdict* v) const {
    v->kind = kOvertakes;
    v->remedy = kEachSignal;
    v->how = "wait";
    const auto came_first = [&](const Record& r) {
        return r.sets == put.sets && r.poster_id == put.poster_id && r.target == put.target && r.number > put.number &&
               happens_before(r.id, r.time, known);
    };
    const auto later = std::find_if(records_.begin(), records_.end(), came_first);
    if (!put.sets || later == records_.end()) return;
    v->detail = "the reader has seen what a later operation sets, which may arrive before this one";
    v->remedy = "a quiet or a fence between operations that set one signal; or NetSignal::kAdd, which counts them";
    v->what = "a quiet (or a fence)";
    v->how = "between";
    v->from = put_pc;
    v->to = static_cast<uint32_t>(later->poster.pc);
}

// A thread or another operation accesses memory that a NIC has written.
Checker::Verdict Checker::judge_nic_wrote(const Conflict& c, const Record& first) const {
    Verdict v;
    const ThreadCheck& t = c.t;
    const Record* second = t.owner ? nullptr : record_of(t.id, t.time);
    const int reader_rank = second ? second->poster.rank : t.rank;
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
    const bool after_post = happens_before(first.poster_id, first.poster_time, t.clock);
    if (second && (c.flags & kWrites)) {
        const bool same_line = c.pc == c.slot.pc && second->source == first.source;
        v.certainty = 21;
        if (second->number < first.number && second->source == first.source) std::swap(v.from, v.to);
        if (second->source != first.source) {
            v.remedy = "a place of its own for each sender, or credit before reuse";
            v.how = "own";
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
    if (!second && (c.flags & kWrites) && !(c.slot.flags & kAgain) && !after_post) {
        v.remedy = "one writer for each place, or a wait: the NIC brings data where its owner writes too";
        v.how = "own_wait";
        return v;
    }
    if (second && second->source != first.source) {  // data that is forwarded
        v.remedy = "wait (acquire) for the data before it is sent on";
        v.how = "wait";
        return v;
    }
    const bool acquired_any =
        happens_before(first.poster_id, past_of(first.poster_id, first.poster_time).since, t.clock);
    const ThreadCheck* reader = t.owner ? &t : nullptr;
    const Unsettled unsettled = {
        true, past_of(first.poster_id, first.poster_time).block, first.poster_id, first.poster_time, t.block, c.pc};
    if (after_post && !first.signal) {
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.certainty = 24;
        v.what = "a quiet (or a fence)";
        v.to = signal_of(reader_rank, reader, first.source, c.slot.pc);
        v.how = "between";
        judge_other_queue(first, &v);
    } else if (after_post) {
        judge_each_signal(first, t.clock, c.slot.pc, &v);
        v.certainty = 23;
    } else if (c.slot.flags & kAgain) {
        v.kind = kReused;
        v.remedy = kCredit;
        v.certainty = 21;
        v.how = "credit_late";
    } else if (judge_beside(first, t.clock, c.slot.pc, unsettled, &v) ||
               judge_signal_of_sibling(first, t.clock, c.slot.pc, signal_of(reader_rank, reader, first.source, 0),
                                       unsettled, &v) ||
               judge_waiting_sibling(reader, t.time, c.pc, &v)) {
        return v;
    } else if (acquired_any && first.signal) {
        judge_each_signal(first, t.clock, c.slot.pc, &v);
    } else if (acquired_any) {
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.certainty = 23;
        v.from = signal_of(reader_rank, reader, first.source, 0, &v.wait);
        v.to = c.slot.pc;
        v.how = "swap";
        v.unsettled = unsettled;
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

// A NIC writes to memory that a thread has accessed.
Checker::Verdict Checker::judge_nic_writes(const Conflict& c, const Record& second) const {
    Verdict v;
    const Slot& slot = c.slot;
    v.from = slot.pc;
    v.to = c.pc;
    const Past& past = past_of(slot.id, slot.time);
    const ThreadCheck* reader = running(slot.id, past.block);
    const bool of_block = past.block == past_of(second.poster_id, second.poster_time).block;
    if (second.kind == NetKind::kGet && of_block && reader && !(slot.flags & kWrites) &&
        !happens_before(second.poster_id, second.poster_time, reader->clock) && slot.id != second.poster_id) {
        const bool warp = second.poster_id / kWarpSize == slot.id / kWarpSize;
        v.kind = "read before arrival";
        v.remedy = "a barrier between the quiet of the thread that posts a get and the reads of others";
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp() behind the quiet," : "__syncthreads() behind the quiet,";
        v.how = "between";
        v.from = c.pc;
        v.to = slot.pc;
        return v;
    }
    if (const ThreadCheck* sibling = sibling_ahead(c.t, reader)) {
        const bool warp = sibling->id / kWarpSize == slot.id / kWarpSize;
        const ThreadCheck* poster = running(second.poster_id, past_of(second.poster_id, second.poster_time).block);
        v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
        v.detail = kCreditOfSibling;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.how = "before_credit";
        v.to = signal_of(second.poster.rank, poster, ids_of(slot.id).rank, 0);
        return v;
    }
    v.certainty = 21;
    if (slot.flags & kWrites) {
        v.remedy = "credit before reuse, or a barrier of all ranks: the owner writes there too";
        v.how = "own_wait";
        std::swap(v.from, v.to);
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
        const ThreadCheck* poster = running(second.poster_id, past_of(second.poster_id, second.poster_time).block);
        if (poster) judge_old_credit(*poster, c.slot.id, past.block, &v);
        return v;
    }
    // Read before it was ever written: too early.
    const int rank = ids_of(slot.id).rank;
    const VectorClock& known = reader ? reader->clock : ranks_[rank].stream;
    const bool acquired_any =
        happens_before(second.poster_id, past_of(second.poster_id, second.poster_time).since, known);
    const Unsettled unsettled = {
        true,   past_of(second.poster_id, second.poster_time).block, second.poster_id, second.poster_time, past.block,
        slot.pc};
    v.certainty = 22;
    v.to = slot.pc;
    if (happens_before(second.poster_id, second.poster_time, known) && !second.signal) {
        v.certainty = 24;
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.from = c.pc;
        v.to = signal_of(rank, reader, second.source, c.pc);
        v.what = "a quiet (or a fence)";
        v.how = "between";
        judge_other_queue(second, &v);
    } else if (judge_beside(second, known, c.pc, unsettled, &v) ||
               judge_signal_of_sibling(second, known, c.pc, signal_of(rank, reader, second.source, 0), unsettled, &v) ||
               judge_waiting_sibling(reader, slot.time, slot.pc, &v)) {
        return v;
    } else if (acquired_any && second.signal) {
        judge_each_signal(second, known, c.pc, &v);
    } else if (acquired_any) {
        v.certainty = 23;
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.from = signal_of(rank, reader, second.source, 0, &v.wait);
        v.to = c.pc;
        v.how = "swap";
        v.unsettled = unsettled;
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

}  // namespace epemu

// Conflicts with an asynchronous or bulk copy on at least one side.
#include <iterator>

#include "checker.hpp"
#include "checker_findings.hpp"
#include "machine.hpp"
#include "network.hpp"

namespace epemu {

bool Checker::is_copy(const Record* r) { return r && r->kind >= NetKind::kBulkLoad; }

// Whether a thread, at this time of its own, was past its call of a bulk store that lane 0 posts.
bool Checker::after_own_call(const ThreadCheck& t, uint32_t call, uint32_t time) {
    return call && call <= t.stores_called && t.stores_called - call < std::size(t.called_at) &&
           time >= t.called_at[call % std::size(t.called_at)];
}

// A wait that ended at once.
bool Checker::judge_phase(const ThreadCheck& t, Verdict* v) const {
    if (!t.asked_again_pc) return false;
    v->kind = "read before arrival";
    v->detail = "that wait was over at once: its phase is that of an earlier round";
    v->remedy = "the phase of each round: tma_wait with 0 for the first, then 1, 0, 1, ...";
    v->what = "count the rounds for the phase";
    v->how = "at";
    v->to = t.asked_again_pc;
    v->certainty = 30;
    return true;
}

// At least one side is a bulk copy.
Checker::Verdict Checker::judge_copy(const Conflict& c, const Record* first, const Record* second) const {
    Verdict v;
    const bool came_first = is_copy(first);
    const Record& copy = came_first ? *first : *second;
    const bool load = copy.kind == NetKind::kBulkLoad;
    const bool writes = (came_first ? c.slot.flags : c.flags) & kWrites;
    const uint32_t copy_pc = came_first ? c.slot.pc : c.pc, other_pc = came_first ? c.pc : c.slot.pc;
    const uint32_t other_id = came_first ? c.t.id : c.slot.id;
    const bool other_is_thread = came_first ? c.t.owner != nullptr : !first;
    const Past& past = past_of(copy.poster_id, copy.poster_time);
    // If both are copies, the other one's block is its poster's.
    const Record* const other_copy = came_first ? second : first;
    const uint64_t other_block = is_copy(other_copy) ? past_of(other_copy->poster_id, other_copy->poster_time).block
                                 : came_first        ? c.t.block
                                                     : block_of(c.slot.id, c.slot.time);
    const ThreadCheck* other = !other_is_thread ? nullptr : came_first ? &c.t : running(other_id, other_block);
    const bool same_block = other_block == past.block;
    const bool warp = same_block && other_id / kWarpSize == copy.poster_id / kWarpSize;
    // Another lane has waited for the data before this load: it was still using that data.
    bool read_earlier_round = false;
    for (const Record* before = &copy; other && other_id != copy.poster_id && before-- != records_.data();)
        if (before->kind == copy.kind && c.address - before->to_begin < before->to_end - before->to_begin &&
            past_of(before->poster_id, before->poster_time).block == past.block)
            read_earlier_round |= happens_before(before->id, before->time + 1, other->clock);
    const bool knows =
        other && (other_id == copy.poster_id || happens_before(copy.poster_id, copy.poster_time, other->clock));
    v.certainty = 22;
    v.how = "between";
    v.from = copy_pc;
    v.to = other_pc;
    if (!same_block && other_id != copy.poster_id) {
        judge_far_copy(c, first, second, &v);
    } else if (copy.kind == NetKind::kAsyncCopy) {
        const ThreadCheck* poster = running(copy.poster_id, past.block);
        const bool waited = poster && happens_before(copy.id, copy.time + 1, poster->clock);
        const bool own = copy.poster_id == (is_copy(other_copy) ? other_copy->poster_id : other_id);
        if (!writes && came_first && (own || !waited)) {
            v.kind = "source reused";
            v.what = kCopyWait;
            v.remedy = std::string(kCopyWait) + " before the source of an asynchronous copy is written again";
        } else if (writes && (own || knows)) {
            v.kind = "read before arrival";
            v.what = own ? kCopyWait : std::string(kCopyWait) + ", then " + (warp ? "__syncwarp()" : "__syncthreads()");
            v.remedy = std::string("a wait that covers the copy (") + kCopyWait +
                       " for all of its thread's; cg::wait) before what it brings is used";
        } else {  // overwrites data that others read, or others use data that only one has waited for
            const bool too_early = !came_first || read_earlier_round;
            v.certainty = read_earlier_round ? 33 : came_first ? 32 : 12;
            v.remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
            v.what = warp ? "__syncwarp()" : "__syncthreads()";
            v.how = too_early ? "around_two" : "between";
            v.from = too_early ? other_pc : poster && poster->waited_pc ? poster->waited_pc : copy_pc;
            v.to = too_early ? copy_pc : other_pc;
        }
    } else if (!writes && came_first) {
        v.kind = "source reused";
        v.what = load ? "tma_wait()" : "tma_wait_read()";
        v.remedy = load ? "tma_wait before the source of a bulk load is written again"
                        : "tma_wait_read before the source of a bulk store is written again";
    } else if (!load && !writes && other && warp &&
               after_own_call(*other, copy.call, c.slot.time)) {  // filled again before it was sent, by a lane ahead
        v.kind = "source reused";
        v.what = "tma_wait_read()";
        v.remedy = "tma_wait_read before the source of a bulk store is written again";
        v.certainty = 21;
    } else if (load && other && judge_phase(*other, &v)) {
        return v;
    } else if (!writes || (load && !came_first && (read_earlier_round || !knows))) {
        // Posted too early: the copy sends data that others are writing, or overwrites data that they still read.
        if (read_earlier_round) v.certainty = 24;
        v.remedy = warp ? "missing __syncwarp before the bulk copy (and tma_fence, if threads wrote there)"
                        : "missing __syncthreads before the bulk copy (and tma_fence, if threads wrote there)";
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.from = other_pc;
        v.to = copy_pc;
    } else if (load) {
        v.kind = "read before arrival";
        v.remedy = "tma_wait before what a bulk load brings is used";
        v.what = "tma_wait()";
    } else {
        v.kind = kOvertakes;
        v.remedy = kWaitWritten;
        v.what = "tma_wait_written<0>()";
    }
    return v;
}

// A bulk copy conflicts with another block, of this rank or another one.
void Checker::judge_far_copy(const Conflict& c, const Record* first, const Record* second, Verdict* v) const {
    // The thread responsible for an access: for a copy, its poster.
    const auto poster = [&](const Record& r) {
        return running(r.poster_id, past_of(r.poster_id, r.poster_time).block);
    };
    const ThreadCheck* const now = c.t.owner ? &c.t : is_copy(second) ? poster(*second) : nullptr;
    if (!(c.slot.flags & kWrites)) {  // another block overwrites data that was read, or is still being read
        v->kind = kReused;
        v->remedy = kCredit;
        v->how = "credit_late";
        v->from = c.pc;
        v->to = c.slot.pc;
        v->certainty = 21;
        return;
    }
    const ThreadCheck* const before = is_copy(first) ? poster(*first) : nullptr;
    // A store counts as its thread's own once the thread has waited for it, or the block has ended.
    const bool waited = !is_copy(first) || !before || happens_before(c.slot.id, c.slot.time, before->clock);
    if (waited) {
        if (now && judge_synchronisation({*now, c.bytes, c.flags, c.pc, c.slot, c.cell, c.again}, v)) return;
        const bool again = c.slot.flags & kAgain;
        v->kind = again ? kReused : "race";
        v->remedy = again ? kCredit : kWait;
        v->how = again ? "credit_late" : "wait";
        v->from = c.slot.pc;
        v->to = c.pc;
        v->certainty = again ? 21 : 22;
        return;
    }
    v->kind = kOvertakes;
    v->remedy = kWaitWritten;
    v->what = "tma_wait_written<0>()";
    v->certainty = 24;
    if (const uint32_t signal = now ? signal_of(now->rank, now, first->poster.rank, 0) : 0) v->to = signal;
}

// A bulk copy reads or overwrites an earlier write of a thread, but through another proxy.
void Checker::not_fenced(const Access& a, const Slot& slot) {
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {a.t.id, a.t.time, a.pc, a.flags};
    Finding& finding = note(first, second);
    Verdict& v = finding.verdict;
    if (v.certainty >= 22) return;
    finding.where = describe_address(m_, a.address);
    report_as(finding, first, second);
    v.kind = "proxy fence";
    v.remedy = "tma_fence by each thread that wrote, before the barrier in front of the bulk copy";
    v.certainty = 22;
    v.what = "tma_fence()";
    v.how = "between";
    v.from = slot.pc;
    v.to = a.pc;
}

}  // namespace epemu

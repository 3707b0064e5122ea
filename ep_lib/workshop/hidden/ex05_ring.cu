// The other half of every test of exercise 05_ring: both ends of a ring, with the learner's functions as a part.
//
// Block 0 sends, block 1 receives, each by its last warp. All other code is the grader's own, written without
// <ep/ring.cuh>.
#include <ep/net.cuh>

#include <calls/ex05_ring.cuh>
#include <grader.cuh>

namespace {

using given::Ring;

// The numbers of one run; ex05_ring.py sets others than these defaults (job_of).
struct Job {
    int64_t to, from;                        // peers this rank sends to and receives from; -1: none
    int64_t num_slots = 2, slot_bytes = 64;  // of the ring
    int64_t messages = 7, short_by = 0;      // message m has (m % 3) * short_by bytes less than a slot
    int64_t queue_pair = 0;
    int64_t delay = 0;     // how often the grader's receiver lets others run
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t bytes = 0;     // of a stream
    int64_t credits = 0;   // task 1: the value of the counter
    int64_t first = 0;     // number of the first message
    int64_t marked = 0;    // 1: a mark, a separate operation, follows each post on the ring's queue pair
    int64_t odd = 0;       // where the data begins in `source` and `seen`
    int64_t late = 0;      // the number of credits that come after the wait for the first one has failed
};

enum Part { kRoom = 1, kWaitForRoom = 2, kPost = 4, kWait = 8, kCredit = 16, kSend = 32, kReceive = 64, kStream = 128 };

constexpr ep::Phase kPhase = ep::kPhaseDispatch;  // the phase that the grader's receiver passes

struct Memory {
    char *staging, *slots;  // symmetric, as `counters`
    uint64_t* counters;     // credits, arrived of every slot, marks
    const char* source;
    char* seen;  // every message as the receiver found it
    // Whether sending and receiving failed, the most messages ahead, the next message's number, whether a mark
    // overtook; then a fault (note_fault).
    uint64_t* noted;
};

EP_DEVICE Ring ring_of(const Job& job, const Memory& my, int64_t peer) {
    return {int(peer), int(job.queue_pair), int(job.num_slots), size_t(job.slot_bytes), my.staging,
            my.slots,  my.counters + 1,     my.counters};
}

EP_DEVICE size_t size_of(const Job& job, uint64_t message) {
    return job.slot_bytes - (message - job.first) % 3 * job.short_by;
}

EP_DEVICE uint64_t* marks_of(const Ring& ring) { return ring.arrived + ring.num_slots; }

EP_DEVICE void mark(const Job& job, const Ring& ring) {
    if (job.marked) ep::net_atomic_add_u64_nbi(marks_of(ring), 1, ring.peer, ring.queue_pair);
}

// On InfiniBand, operations posted before a mark on the same queue pair arrive before it.
EP_DEVICE void look_behind_marks(const Job& job, const Memory& my, const Ring& ring, bool for_credits) {
    if (ep::lane_id() != 0) return;
    for (uint64_t message = job.first; message < uint64_t(job.first + job.messages); ++message) {
        while (ep::ld_acquire_sys_u64(marks_of(ring)) <= message - job.first) {  // role: what follows on the queue pair
        }
        const uint64_t* const word = for_credits ? ring.credits : ring.arrived + message % ring.num_slots;
        if (ep::ld_acquire_sys_u64(word) <= message) my.noted[4] = 1;
    }
}

// ---- the sender -------------------------------------------------------------------------------------------------
EP_DEVICE bool wait_for_room(const Job& job, const Ring& ring, uint64_t message) {
    if (job.learners & kWaitForRoom) return piece_ring_wait_for_room(ring, message);
    if (job.learners & kRoom) {
        while (
            !piece_ring_has_room(ring, message)) {  // role: the sender, which asks your ring_has_room again and again
        }
        return true;
    }
    const uint64_t needed = message < uint64_t(ring.num_slots) ? 0 : message - ring.num_slots + 1;
    while (ep::ld_acquire_sys_u64(ring.credits) < needed) {  // role: the sender waits for your credit
    }
    return true;
}

EP_DEVICE bool send(const Job& job, const Ring& ring, const char* source, uint64_t message) {
    const size_t bytes = size_of(job, message);
    if (job.learners & kSend) return piece_ring_send_warp(ring, source, bytes, message);
    int ok = ep::lane_id() == 0 ? wait_for_room(job, ring, message) : 0;
    ok = __shfl_sync(ep::kFullWarp, ok, 0);
    __syncwarp();
    if (!ok) return false;
    const size_t at = message % ring.num_slots * ring.slot_bytes;
    for (size_t i = ep::lane_id(); i < bytes; i += ep::kWarpSize) {
        ring.staging[at + i] = source[i];  // role: the sender, which fills the slot once there is room
    }
    __syncwarp();
    if (ep::lane_id() != 0) return true;
    if (job.learners & kPost) {
        piece_ring_post(ring, message, bytes);
        mark(job, ring);
    } else {
        uint64_t* signal = ring.arrived + message % ring.num_slots;
        ep::net_put_signal_nbi(  // role: the sender's post
            ring.slots + at, ring.staging + at, bytes, signal, message + 1, ring.peer, ring.queue_pair,
            ep::NetSignal::kSet);
    }
    return true;
}

// ---- the receiver -----------------------------------------------------------------------------------------------
EP_DEVICE bool receive(const Job& job, const Ring& ring, char* target, uint64_t message, uint64_t* notes) {
    const size_t bytes = size_of(job, message);
    if (job.learners & kReceive) return piece_ring_receive_warp(ring, target, bytes, message);
    int ok = 1;
    if (ep::lane_id() == 0) {
        const uint64_t* signal = ring.arrived + message % ring.num_slots;
        if (job.learners & kWait) {
            ok = piece_ring_wait_for_message(ring, message, kPhase);
        } else {
            while (ep::ld_acquire_sys_u64(signal) < message + 1) {  // role: the receiver waits for the slot's signal
            }
        }
        let_others_run(job.delay);
        note_lead(ring.arrived, ring.num_slots, message, notes + 2);
    }
    ok = __shfl_sync(ep::kFullWarp, ok, 0);
    __syncwarp();
    if (!ok) return false;
    const char* slot = ring.slots + message % ring.num_slots * ring.slot_bytes;
    for (size_t i = ep::lane_id(); i < bytes; i += ep::kWarpSize) {
        target[i] = slot[i];  // role: the receiver, which takes the message out of its slot
    }
    __syncwarp();
    if (ep::lane_id() != 0) return true;
    if (job.learners & kCredit) {
        piece_ring_return_credit(ring);
        mark(job, ring);
    } else {
        ep::net_atomic_add_u64_nbi(ring.credits, 1, ring.peer, ring.queue_pair);
    }
    return true;
}

// ---- both -------------------------------------------------------------------------------------------------------
// Notes and removes the fault that the host would raise as PeerTimeout.
EP_DEVICE void note_failure(const Memory& my, bool sends) {
    my.noted[sends ? 0 : 1] = 1;
    note_fault(my.noted + 5);
}

// A receiver that comes back when its sender has given up.
EP_DEVICE void return_late(const Job& job, const Ring& ring) {
    if (ep::lane_id() != 0) return;
    while (!ep::has_fault()) let_others_run(1);
    ep::st_release_sys_u64(ring.credits, job.late);
}

EP_DEVICE void run_messages(const Job& job, const Memory& my, bool sends) {
    const Ring ring = ring_of(job, my, sends ? job.to : job.from);
    bool ok = true;
    for (uint64_t message = job.first; message < uint64_t(job.first + job.messages) && ok; ++message) {
        const size_t at = (message - job.first) * job.slot_bytes;
        ok = sends ? send(job, ring, my.source + at, message) : receive(job, ring, my.seen + at, message, my.noted);
    }
    if (ep::lane_id() == 0 && !ok) note_failure(my, sends);
}

// Two streams, one after the other, over the same ring.
EP_DEVICE void run_streams(const Job& job, const Memory& my, bool sends) {
    const Ring ring = ring_of(job, my, sends ? job.to : job.from);
    const size_t first = job.bytes / 3, second = job.bytes - first;
    uint64_t message = job.first;
    bool ok;
    if (sends) {
        ok = piece_ring_send_stream_warp(ring, my.source, first, &message) &&
             piece_ring_send_stream_warp(ring, my.source + first, second, &message);
    } else {
        ok = piece_ring_receive_stream_warp(ring, my.seen, first, &message) &&
             piece_ring_receive_stream_warp(ring, my.seen + first, second, &message);
        if (ep::lane_id() == 0) my.noted[3] = message;
    }
    if (ep::lane_id() != 0 || ok) return;
    while (sends && job.late && ep::ld_acquire_sys_u64(ring.credits) == 0) let_others_run(1);
    note_failure(my, sends);
}

// Task 1 alone: records the functions' answers for every message, with this many credits.
EP_DEVICE void ask_for_room(const Job& job, const Memory& my) {
    if (blockIdx.x != 0 || ep::lane_id() != 0) return;
    const Ring ring = ring_of(job, my, 0);
    *ring.credits = job.credits;
    for (int64_t i = 0; i < job.messages; ++i) {
        my.noted[2 * i] = piece_ring_credits_needed(ring, job.first + i);
        my.noted[2 * i + 1] = piece_ring_has_room(ring, job.first + i);
    }
}

EP_DEVICE void play(int task, const Job& job, const Memory& my) {
    if (ep::warp_id() != ep::warps_in_block() - 1) return;
    if (task == 1 && job.learners == 0) return ask_for_room(job, my);
    if (blockIdx.x >= 2) {
        const bool for_credits = job.to >= 0;
        if (!(job.learners & (for_credits ? kCredit : kPost))) return;
        return look_behind_marks(job, my, ring_of(job, my, for_credits ? job.to : job.from), for_credits);
    }
    const bool sends = blockIdx.x == 0;
    if (!sends && job.late && job.to >= 0) return return_late(job, ring_of(job, my, job.to));
    if ((sends ? job.to : job.from) < 0) return;
    if (job.learners & kStream) {
        run_streams(job, my, sends);
    } else {
        run_messages(job, my, sends);
    }
}

}  // namespace

extern "C" __global__ void examine(int task, char* staging, char* slots, uint64_t* counters, const char* source,
                                   char* seen, uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(seen);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    play(task, job, {staging, slots, counters, source + job.odd, seen + job.odd, noted});
    meet_at_the_end();
}

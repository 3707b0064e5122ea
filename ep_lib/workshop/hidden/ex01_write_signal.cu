// The other half of every test of exercise 01: one kernel that plays sender and receiver around the learner's functions.
// It knows no expected values: it records what it saw, and the grader's own process compares.
//
// Block 0 sends, block 1 receives. A "unit" is a thread (task 1), or a warp with a message or a pipe of its own.
#include <calls/ex01_write_signal.cuh>
#include <grader.cuh>

namespace {

using given::Pipe, given::Write;

// The numbers of one run; ex01_write_signal.py sets others than these defaults (job_of).
struct Job {
    int64_t to, from;                        // peers this rank sends to and receives from; -1: none
    int64_t units = 1;                       // messages or pipes side by side
    int64_t bytes = 64, stride = 0;          // of a unit's message or slot, and from unit to unit in `area`
    int64_t target = 0, source = 0;          // offsets of the first byte; task 5: `source` in `seen`, too
    int64_t increment = 1, expect_less = 0;  // task 2 waits for this much less than the signal will be
    int64_t steps = 1;                       // signals (task 2), writes (task 4), rounds (task 5)
    int64_t slots = 1;                       // of a pipe
    int64_t delay = 0;                       // how often the grader's own side lets others run
    int64_t own_send = 0, own_receive = 0;   // 1: the grader's side; 2: none; 3: takes from a full pipe only
    int64_t first = 0;                       // task 5: the first round
};

// Arrays of one rank. `area` and `counters` are symmetric.
struct Memory {
    char* area;
    const char* source;
    uint64_t* counters;
    char* seen;       // the area, or each round's data, as the receiver found it
    uint64_t* noted;  // further notes
};

constexpr int kCounters = 8;  // of each unit, so that a change of a neighbour shows
constexpr int kArrived = 2;   // the counter in use; a wrong index shows too
constexpr int kCredits = 5;
constexpr int kMaxWrites = 400;
enum Answer { kNever, kCame, kBlamesOther };  // of task 2
constexpr int kNotes = 4;                     // of each pipe: sending failed, receiving failed, most rounds ahead

// ---- tasks 1, 3 and 4: the learner sends ------------------------------------------------------------------------
GRADER_PART void many_writes(const Job& job, const Memory& my, int64_t at, uint64_t* signal) {
    // The writes grow, except the middle one, which has no bytes; the bytes between them must not change.
    __shared__ Write writes[4][kMaxWrites];
    Write* list = writes[ep::warp_id()];
    if (ep::lane_id() == 0) {
        int64_t offset = 0;
        for (int64_t i = 0; i < job.steps; ++i) {
            const int64_t bytes = job.bytes * ((i + job.steps - job.steps / 2) % job.steps) / job.steps;
            list[i] = {my.area + job.target + at + offset, my.source + job.source + at + offset, size_t(bytes)};
            offset += bytes + 3;
        }
    }
    __syncwarp();
    piece_write_many_and_signal_warp(list, int(job.steps), signal, job.increment, int(job.to));
}

GRADER_PART void learner_sends(int task, const Job& job, const Memory& my) {
    const int unit = task == 1 ? ep::thread_in_block() : ep::warp_id();
    if (unit >= job.units) return;
    const int64_t at = unit * job.stride;
    uint64_t* signal = my.counters + unit * kCounters + kArrived;
    char* target = my.area + job.target + at;
    const char* source = my.source + job.source + at;
    if (task == 1) piece_write_and_signal_thread(target, source, job.bytes, signal, job.increment, int(job.to));
    if (task == 3) piece_write_and_signal_warp(target, source, job.bytes, signal, job.increment, int(job.to));
    if (task == 4) many_writes(job, my, at, signal);
}

GRADER_PART void grader_receives(const Job& job, const Memory& my) {
    const int unit = ep::thread_in_block();
    if (unit >= job.units) return;
    const uint64_t* signal = my.counters + unit * kCounters + kArrived;
    const uint64_t before = my.noted[unit];
    while (ep::ld_acquire_sys_u64(signal) == before) {  // role: the receiver waits for your signal, which began above 0
    }
    look_at(my.seen + unit * job.stride, my.area + unit * job.stride, job.stride);
}

// ---- task 2: the grader sends step by step, the learner waits ----------------------------------------------------
GRADER_PART void grader_sends(const Job& job, const Memory& my) {
    if (ep::thread_in_block() != 0) return;
    char* target = ep::peer_ptr(my.area + job.target, int(job.to));
    uint64_t* signal = ep::peer_ptr(my.counters + kArrived, int(job.to));
    for (int64_t step = 0; step < job.steps; ++step) {
        let_others_run(job.delay);
        for (int64_t i = 0; i < job.bytes; ++i)
            target[step * job.stride + i] = my.source[job.source + step * job.stride + i];  // role: the sender
        ep::red_add_release_sys_u64(signal, job.increment);
    }
}

GRADER_PART void learner_waits(const Job& job, const Memory& my) {
    const int thread = ep::thread_in_block();
    if (ep::warp_id() > job.units / ep::kWarpSize) return;
    const bool calls = thread < job.units;  // other threads of the warp do something else meanwhile
    const uint64_t* signal = my.counters + kArrived;
    const uint64_t before = calls ? my.noted[thread] : 0;
    for (int64_t step = 0; step < job.steps; ++step) {
        const uint64_t expected = before + (step + 1) * job.increment - job.expect_less;
        const bool came = !calls || piece_wait_for_signal(signal, expected, int(job.from));
        if (calls) {
            const int64_t share = job.stride / job.units, at = step * job.stride + thread * share;
            look_at(my.seen + at, my.area + at, share);
            my.noted[thread] = came ? kCame : kNever;
        }
        const bool all_came = __all_sync(ep::kFullWarp, came);
        __syncwarp();  // no lane records a fault any more
        if (!all_came && ep::lane_id() == 0) {
            if (!blames({ep::kPhaseSignal, int(job.from), -1})) my.noted[thread] = kBlamesOther;
            forget_fault();
        }
        __syncwarp();
    }
}

// ---- task 5: pipes -----------------------------------------------------------------------------------------------
EP_DEVICE Pipe pipe_of(const Job& job, const Memory& my) {
    uint64_t* counters = my.counters + ep::warp_id() * kCounters;
    char* slots = my.area + job.target + ep::warp_id() * job.stride;
    return {slots, size_t(job.bytes), int(job.slots), counters + kArrived, counters + kCredits};
}

// The sender that uses a slot as soon as it has the slot's credit.
GRADER_PART bool eager_send(const Pipe& pipe, const char* source, uint64_t round, int peer) {
    const uint64_t slots = pipe.num_slots;
    const uint64_t needed = round < slots ? 0 : round - slots + 1;
    while (ep::ld_acquire_sys_u64(pipe.credits) < needed) {  // role: the sender waits for your credit
    }
    char* slot = pipe.slots + round % slots * pipe.slot_bytes;
    ep::put_warp(slot, source, pipe.slot_bytes, peer);  // role: the sender, which uses a slot once it has the credit
    __syncwarp();
    if (ep::lane_id() == 0) ep::signal_add(pipe.arrived, 1, peer);
    return true;
}

// The receiver that waits until `arrived` rounds have come, and records how many rounds the sender is ahead.
GRADER_PART bool slow_receive(const Pipe& pipe, char* target, uint64_t round, uint64_t arrived, int peer, int64_t delay,
                              uint64_t* ahead) {
    while (ep::ld_acquire_sys_u64(pipe.arrived) < arrived) {  // role: the receiver waits for your signal
    }
    let_others_run(delay);
    __syncwarp();
    if (ep::lane_id() == 0) note_lead(pipe.arrived, 1, round, ahead);
    const char* slot = pipe.slots + round % pipe.num_slots * pipe.slot_bytes;
    for (size_t i = ep::lane_id(); i < pipe.slot_bytes; i += ep::kWarpSize) {
        target[i] = slot[i];  // role: the receiver, which takes the data out of its slot
    }
    __syncwarp();
    if (ep::lane_id() == 0) ep::signal_add(pipe.credits, 1, peer);
    return true;
}

GRADER_PART void run_pipes(const Job& job, const Memory& my, bool sends) {
    const int unit = ep::warp_id();
    if (unit >= job.units || (sends ? job.own_send : job.own_receive) == 2) return;
    const Pipe pipe = pipe_of(job, my);
    bool ok = true;
    for (int64_t round = job.first; round < job.first + job.steps && ok; ++round) {
        const int64_t at = (unit * job.steps + round - job.first) * job.bytes;
        const char* source = my.source + job.source + at;
        char* target = my.seen + job.source + at;
        if (sends) {
            ok = job.own_send ? eager_send(pipe, source, round, int(job.to))
                              : piece_pipe_send_warp(pipe, source, round, int(job.to));
        } else {
            const int64_t full = min(round + job.slots, job.first + job.steps);
            const uint64_t arrived = job.own_receive == 3 ? full : round + 1;
            ok = job.own_receive ? slow_receive(pipe, target, round, arrived, int(job.from), job.delay,
                                                &my.noted[kNotes * unit + 2])
                                 : piece_pipe_receive_warp(pipe, target, round, int(job.from));
        }
    }
    if (ep::lane_id() == 0 && !ok) {
        my.noted[kNotes * unit + (sends ? 0 : 1)] = 1;
        if ((sends ? job.own_receive : job.own_send) == 2)
            forget_fault();  // otherwise the host's error would name the awaited rank
    }
}

EP_DEVICE void play(int task, const Job& job, const Memory& my) {
    const bool sends = blockIdx.x == 0;
    if ((sends ? job.to : job.from) < 0) return;
    if (task == 5) {
        run_pipes(job, my, sends);
    } else if (task == 2) {
        sends ? grader_sends(job, my) : learner_waits(job, my);
    } else {
        sends ? learner_sends(task, job, my) : grader_receives(job, my);
    }
}

}  // namespace

extern "C" __global__ void examine(int task, char* area, uint64_t* counters, const char* source, char* seen,
                                   uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(seen);
    play(task, *reinterpret_cast<const Job*>(numbers), {area, source, counters, seen, noted});
    meet_at_the_end();
}

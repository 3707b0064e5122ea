// The other half of every test of exercise 03_shim: a sender and a receiver around the learner's calls of the shim.
//
// Block 0 sends, block 1 receives. A "unit" is a warp with a message and a counter of its own.
#include <ep/ibgda_state.cuh>
#include <ep/net.cuh>

#include <calls/ex03_shim.cuh>
#include <ep/wait.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex03_shim.py sets others than these defaults (job_of).
struct Job {
    int64_t to, from;                // peers this rank sends to and receives from; -1: none
    int64_t units = 1;               // messages side by side
    int64_t bytes = 64, stride = 0;  // of a message, and from unit to unit in `area` and `source`
    int64_t target = 0, source = 0;  // offsets of the first byte
    int64_t queue_pair = 0;          // of the first unit; the next one uses the next
    int64_t finisher = 0;            // the lane that goes on after the call
    int64_t value = 1, times = 1;    // what is added to the counter, and how often
    int64_t then = 0;                // the action after the learner's call, see below
    int64_t local = 0;               // task 4: the counter is a local copy
    int64_t beside = 0;              // task 4: how often the counter's own rank adds 1 at the same time
};

enum Then { kStore, kQuiet, kSameQueuePair, kNothing };

struct Memory {
    char* area;  // symmetric, as `source` and `counters`
    char* source;
    uint32_t* counters;  // kCounters of each unit, so that a change of a neighbour shows
    char* seen;          // the area as the receiver found it
    uint64_t* noted;
};

constexpr int kCounters = 8;
constexpr int kArrived = 3;

EP_DEVICE uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// ---- task 1 -----------------------------------------------------------------------------------------------------
// 0: no pointer, 1: the right one, 2: another. The right pointer is also used.
EP_DEVICE void ask_for_pointers(const Job& job, const Memory& my) {
    if (blockIdx.x != 0 || ep::thread_in_block() != 0) return;
    char* const mine = my.area + job.target + ep::rank();
    for (int peer = 0; peer < ep::num_ranks(); ++peer) {
        const uint64_t got = piece_nvshmemi_get_p2p_ptr(address(mine), ep::rank(), peer);
        const bool right = ep::reachable(peer) && got == address(ep::peer_ptr(mine, peer));
        my.noted[peer] = got == 0 ? 0 : right ? 1 : 2;
        if (right) *reinterpret_cast<char*>(got) = static_cast<char>(my.source[0]);
    }
}

// ---- tasks 2 and 3 ----------------------------------------------------------------------------------------------
EP_DEVICE void tell(uint32_t* counter, const Job& job) {
    if (ep::reachable(int(job.to))) {
        ep::red_add_release_sys_u32(ep::peer_ptr(counter, int(job.to)), uint32_t(job.value));
    } else {
        ep::net_atomic_add_u32_nbi(counter, uint32_t(job.value), int(job.to), 0);
    }
}

EP_DEVICE void learner_puts(const Job& job, const Memory& my) {
    const int unit = ep::warp_id(), qp = int(job.queue_pair) + unit;
    if (unit >= job.units) return;
    char* target = my.area + job.target + unit * job.stride;
    char* source = my.source + job.source + unit * job.stride;
    uint32_t* counter = my.counters + unit * kCounters + kArrived;
    for (int64_t i = ep::lane_id(); i < job.bytes; i += ep::kWarpSize) {
        source[i] = static_cast<char>(source[i] ^ 1);  // role: the caller, who fills the source before the call
    }
    __syncwarp();
    piece_nvshmemi_ibgda_put_nbi_warp(address(target), address(source), job.bytes, int(job.to), qp, ep::lane_id(), 0);
    if (ep::lane_id() != job.finisher) return;
    if (job.then == kNothing) my.noted[unit] = 1;
    if (job.then == kQuiet) ep::net_quiet(int(job.to), ep::kAllQueuePairs);
    if (job.then == kStore || job.then == kQuiet) tell(counter, job);
    if (job.then == kSameQueuePair)
        ep::net_atomic_add_u32_nbi(counter, uint32_t(job.value), int(job.to), ep::ibgda::queue_pair(qp));
}

EP_DEVICE void grader_receives(const Job& job, const Memory& my) {
    const int unit = ep::thread_in_block();
    if (unit >= job.units || job.then == kNothing) return;
    const uint32_t* counter = my.counters + unit * kCounters + kArrived;
    const uint32_t before = static_cast<uint32_t>(my.noted[unit]);
    while (ep::ld_acquire_sys_u32(counter) == before) {  // role: the receiver waits for the counter to grow
    }
    look_at(my.seen + unit * job.stride, my.area + unit * job.stride, job.stride);
}

// ---- task 4 -----------------------------------------------------------------------------------------------------
EP_DEVICE void write_data(const Job& job, const Memory& my, int64_t at, int qp) {
    char* target = my.area + job.target + at;
    char* source = my.source + job.source + at;
    if (ep::reachable(int(job.to))) {
        char* const theirs = ep::peer_ptr(target, int(job.to));
        for (int64_t i = ep::lane_id(); i < job.bytes; i += ep::kWarpSize) {
            theirs[i] = source[i];  // role: the sender, which writes the data before your counter
        }
    } else if (ep::lane_id() == 0) {
        ep::net_put_nbi(target, source, job.bytes, int(job.to), ep::ibgda::queue_pair(qp));  // role: a put before it
        if (job.then == kQuiet) ep::net_quiet(int(job.to), ep::kAllQueuePairs);
    }
    __syncwarp();
}

EP_DEVICE void learner_adds(const Job& job, const Memory& my) {
    const int unit = ep::warp_id(), qp = int(job.queue_pair) + unit;
    if (unit >= job.units) return;
    if (job.bytes > 0) write_data(job, my, unit * job.stride, qp);
    if (ep::lane_id() != 0) return;
    uint32_t* counter = my.counters + unit * kCounters + kArrived;
    for (int64_t i = 0; i < job.times; ++i)
        piece_nvshmemi_ibgda_amo_nonfetch_add(counter, int(job.value), int(job.to), qp, job.local != 0);
    ep::net_quiet();
}

EP_DEVICE void play(int task, const Job& job, const Memory& my) {
    const bool sends = blockIdx.x == 0;
    if (task == 1) return ask_for_pointers(job, my);
    if ((sends ? job.to : job.from) < 0) return;
    if (!sends) {
        if (job.bytes > 0) grader_receives(job, my);
        uint32_t* const counter = my.counters + ep::thread_in_block() * kCounters + kArrived;
        for (int64_t i = 0; i < job.beside && ep::thread_in_block() < job.units; ++i) {
            ep::red_add_release_sys_u32(counter, 1);
        }
    } else if (task == 4) {
        learner_adds(job, my);
    } else {
        learner_puts(job, my);
    }
}

}  // namespace

extern "C" __global__ void examine(int task, char* area, char* source, uint32_t* counters, char* seen, uint64_t* noted,
                                   const int64_t* numbers) {
    if (task == 0) return canary(seen);
    play(task, *reinterpret_cast<const Job*>(numbers), {area, source, counters, seen, noted});
    meet_at_the_end();
}

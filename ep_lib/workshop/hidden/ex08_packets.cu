// The other half of every test of exercise 08_packets: ping-pong between two ranks, through the same packets in every
// round. What is not the learner's is the grader's own.
#include <calls/ex08_packets.cuh>
#include <grader.cuh>

namespace {

using given::Packet;

// The numbers of one run; ex08_packets.py sets others than these defaults (job_of).
struct Job {
    int64_t words = 8;          // of a round
    int64_t rounds = 6;         // a round is one message from each of the two ranks
    int64_t tag = 1, step = 1;  // the first round's tag, and the step from one round to the next
    int64_t learners = 0;       // which functions are the learner's: bits of Part
    int64_t missing = 0;        // in the last round, this many words never reach the second rank, and none the first
    int64_t gap = 0;            // the first of the missing words
    int64_t delay = 0;          // how often the grader's sender lets others run before it sends
};

enum Part { kSend = 1, kWait = 2, kSendWarp = 4, kWaitWarp = 8 };

constexpr int kLooks = 50;                         // a receiver's looks before the stray tag comes
constexpr uint64_t kStrayTag = uint64_t(1) << 41;  // comes in place of a missing tag, while the receiver waits

struct Memory {
    Packet* packets;           // symmetric [words]
    const uint64_t* source;    // [rounds, words]
    uint64_t *target, *found;  // [words]; [rounds, words]: what arrived, as another lane read it
    uint64_t* noted;           // [32] answers of the lanes, then the fault of a timeout (note_fault)
};

EP_DEVICE void send_word(const Job& job, Packet* packet, uint64_t word, uint64_t tag, int peer) {
    if (job.learners & kSend) return piece_send_packet(packet, word, tag, peer);
    ep::st_relaxed_sys_u64x2(&ep::peer_ptr(packet, peer)->data, word, tag);  // role: the sender's packet
}

EP_DEVICE bool wait_word(const Job& job, const Packet* packet, uint64_t tag, uint64_t* word, const ep::WaitInfo& info) {
    if (job.learners & kWait) return piece_wait_packet(packet, tag, word, info);
    uint64_t seen = 0;
    while (seen != tag) ep::ld_relaxed_sys_u64x2(&packet->data, word, &seen);  // role: the receiver, who waits
    return true;
}

EP_DEVICE void send(const Job& job, const Memory& my, int64_t round, int peer, uint64_t tag) {
    const uint64_t* const words = my.source + round * job.words;
    const int count = static_cast<int>(job.words);
    if (job.learners & kSendWarp) return piece_send_packets_warp(my.packets, words, count, tag, peer);
    const int64_t missing = round == job.rounds - 1 ? job.missing : 0;
    let_others_run(job.delay);
    for (int i = ep::lane_id(); i < count; i += ep::kWarpSize) {
        if (i < job.gap || i >= job.gap + missing) send_word(job, my.packets + i, words[i], tag, peer);
    }
    if (missing) let_others_run(kLooks);
    for (int64_t i = job.gap + ep::lane_id(); i < job.gap + missing; i += ep::kWarpSize) {
        send_word(job, my.packets + i, 0, kStrayTag, peer);
    }
}

EP_DEVICE bool receive(const Job& job, const Memory& my, int64_t round, int peer, uint64_t tag) {
    const ep::WaitInfo info = {ep::kPhaseSignal, peer, round};
    const int lane = ep::lane_id(), words = static_cast<int>(job.words);
    bool ok = true;
    if (job.learners & kWaitWarp) {
        ok = piece_wait_packets_warp(my.packets, my.target, words, tag, info);
        // A lane that returned before the others' vote waits here: if it had left the kernel, the vote would not need
        // it. The shuffle orders no memory.
        (void)__shfl_sync(ep::kFullWarp, 0, 0);
    } else {
        for (int i = lane; i < words && ok; i += ep::kWarpSize) {
            ok = wait_word(job, my.packets + i, tag, my.target + i, info);
        }
        ok = __all_sync(ep::kFullWarp, ok) != 0;
        __syncwarp();
    }
    my.noted[lane] += ok;
    if (!__all_sync(ep::kFullWarp, ok)) return false;  // also if the learner told only some lanes
    for (int i = lane; i < words; i += ep::kWarpSize) {
        const int other = (i + 1) % words;
        my.found[round * words + other] =
            my.target[other];  // role: a lane that reads what another one took out of its packet
    }
    __syncwarp();
    return true;
}

EP_DEVICE void play(const Job& job, const Memory& my) {
    const int peer = ep::rank() ^ 1;
    bool ok = true;
    for (int64_t round = 0; round < job.rounds && ok; ++round) {
        const uint64_t tag = job.tag + round * job.step;
        if (ep::rank() % 2 == 0) send(job, my, round, peer, tag);
        if (ep::rank() % 2 == 0 && job.missing && round == job.rounds - 1) break;
        ok = receive(job, my, round, peer, tag);
        if (ok && ep::rank() % 2 == 1) send(job, my, round, peer, tag);
    }
    __syncwarp();
    if (ep::lane_id() == 0 && (!ok || (job.missing && peer == 0))) note_fault(my.noted + ep::kWarpSize);
}

}  // namespace

extern "C" __global__ void examine(int task, Packet* packets, const uint64_t* source, uint64_t* target, uint64_t* found,
                                   uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(noted);
    if (ep::warp_id() == 1) {  // the second warp, whose lanes are not the block's first threads
        play(*reinterpret_cast<const Job*>(numbers), {packets, source, target, found, noted});
    }
    meet_at_the_end();
}

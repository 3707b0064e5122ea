// Changes the set of members: ranks that mask others, or include them again, meet here twice. Between the meetings,
// each rank clears the memory that peers write, so that all start with epoch 1 (<moe/common/epoch.cuh>), whatever the
// state was when a rank was lost.
//
// A rank may have tried this before, without success or with other ranks, and a new process in a rank's place knows
// nothing of the past. So there are no epochs here: a rank says hello with a fresh number, and has met a peer when it
// finds this number in the peer's answer. A rank answers only while it is in this kernel, and only a hello with the
// same members.
#include <ep/wait.cuh>

namespace ep {

// A peer's message to this rank. Symmetric [2, ranks]: one for each of the two meetings.
struct Hello {
    uint64_t nonce;    // written last; 0: no message yet
    uint64_t members;  // bit r: rank r takes part
    uint64_t buffer;   // a digest of the values that must be equal on all ranks
    uint64_t answer;   // the nonce of our last hello that the peer has seen
};

struct RegroupArgs {
    Hello* hellos;  // those of this meeting
    Hello mine;
    uint64_t* said;  // host memory [ranks, 2]: members and buffer of each rank that has said hello
};

}  // namespace ep

// One block, a thread for each rank.
extern "C" __global__ void __launch_bounds__(64) ep_regroup(ep::RegroupArgs args) {
    using namespace ep;
    const int peer = thread_in_block();
    if (peer >= num_ranks() || peer == rank() || (args.mine.members >> peer & 1) == 0) return;
    Hello* const theirs = args.hellos + peer;
    Hello* const there = peer_ptr(args.hellos + rank(), peer);
    st_relaxed_sys_u64(&there->members, args.mine.members);
    st_relaxed_sys_u64(&there->buffer, args.mine.buffer);
    st_release_sys_u64(&there->nonce, args.mine.nonce);
    uint64_t answered = 0, seen = 0;
    const auto answer = [&] {
        const uint64_t nonce = ld_acquire_sys_u64(&theirs->nonce);
        if (nonce == answered) return;
        args.said[2 * peer] = ld_relaxed_sys_u64(&theirs->members);
        args.said[2 * peer + 1] = ld_relaxed_sys_u64(&theirs->buffer);
        if (args.said[2 * peer] != args.mine.members) return;
        answered = nonce;
        st_release_sys_u64(&there->answer, nonce);
    };
    const auto met = [&] {
        answer();
        seen = ld_acquire_sys_u64(&theirs->answer);
        return seen == args.mine.nonce;
    };
    const auto gave_up = [&] { record_fault(kFaultTimeout, {kPhaseBarrier, peer, -1}, seen, args.mine.nonce); };
    if (!poll_until(met, gave_up, peer)) return;
    answer();  // again: the peer's latest hello may be newer than the one answered before
}

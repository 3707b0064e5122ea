// A contestant's alltoall: <contest.cuh> says what is asked. This one is right, and slow: one block copies everything
// into its peers' inboxes, signals, waits for all of them and copies what came to `out`.
#pragma once
#include <contest.cuh>

constexpr int kBlocks = 1;
constexpr int kThreads = 128;

EP_DEVICE void alltoall(const AllToAll& job) {
    const int ranks = ep::num_ranks(), me = ep::rank(), thread = ep::thread_in_block();
    for (int to = 0; to < ranks; ++to) {
        int4* const theirs = ep::peer_ptr(job.inbox + me * job.vectors, to);
        for (int i = thread; i < job.vectors; i += kThreads) theirs[i] = job.source[to * job.vectors + i];
    }
    __syncthreads();  // data, then signal
    if (thread < ranks) ep::signal_set(job.memory.flags + me, 1, thread);
    for (int from = 0; from < ranks; ++from) {
        if (!ep::wait_until_ge_block(job.memory.flags + from, 1, {ep::kPhaseSignal, from, from})) return;
        for (int i = thread; i < job.vectors; i += kThreads) {
            job.out[from * job.vectors + i] = job.inbox[from * job.vectors + i];
        }
    }
}

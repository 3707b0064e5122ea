// A contestant's dispatch: <contest.cuh> says what is asked. This one is right, and slow: one block; its first threads
// count token by token, the counts are exchanged, and four warps, a token each, copy rows to their exact places.
#pragma once
#include <contest.cuh>

constexpr int kBlocks = 1;
constexpr int kThreads = 128;

EP_DEVICE bool goes_to(const Dispatch& job, int token, int rank) {
    for (int k = 0; k < job.top_k; ++k) {
        const int expert = job.topk_idx[token * job.top_k + k];
        if (expert >= 0 && expert / job.experts_per_rank == rank) return true;
    }
    return false;
}

EP_DEVICE void dispatch(const Dispatch& job) {
    const int ranks = ep::num_ranks(), me = ep::rank(), thread = ep::thread_in_block();
    uint64_t* const counted = job.memory.flags;
    uint64_t* const written = job.memory.flags + ranks;

    // Thread r counts what goes to rank r, and tells every rank: numbers[me][r].
    if (thread < ranks) {
        int count = 0;
        for (int token = 0; token < job.tokens; ++token) {
            job.send_index[token * ranks + thread] = goes_to(job, token, thread) ? count++ : -1;
        }
        for (int to = 0; to < ranks; ++to) ep::peer_ptr(job.memory.numbers, to)[me * ranks + thread] = count;
    }
    __syncthreads();
    if (thread < ranks) ep::signal_set(counted + me, 1, thread);
    for (int from = 0; from < ranks; ++from) {
        if (!ep::wait_until_ge_block(counted + from, 1, {ep::kPhaseLayout, from, 0})) return;
    }

    for (int to = 0; to < ranks; ++to) {
        int first = 0;
        for (int source = 0; source < me; ++source) first += job.memory.numbers[source * ranks + to];
        for (int token = thread / 32; token < job.tokens; token += kThreads / 32) {
            const int place = job.send_index[token * ranks + to];
            if (place < 0) continue;
            int4* const row = ep::peer_ptr(job.rows, to) + (first + place) * job.vectors;
            for (int i = thread % 32; i < job.vectors; i += 32) row[i] = job.x[token * job.vectors + i];
        }
    }
    __syncthreads();
    if (thread < ranks) ep::signal_set(written + me, 1, thread);
    for (int from = 0; from < ranks; ++from) {
        if (!ep::wait_until_ge_block(written + from, 1, {ep::kPhaseDispatch, from, 0})) return;
    }
    if (thread == 0) {
        int rows = 0;
        for (int source = 0; source < ranks; ++source) rows += job.memory.numbers[source * ranks + me];
        *job.num_rows = rows;
    }
}

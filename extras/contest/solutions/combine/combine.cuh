// A contestant's combine: <contest.cuh> says what is asked. This one is right, and slow: one block says that its rows are
// there, waits for all ranks, and its warps fetch and add up one token after the other.
#pragma once
#include <contest.cuh>

constexpr int kBlocks = 1;
constexpr int kThreads = 128;

EP_DEVICE float4 add_weighted(float4 sum, float weight, float4 value) {
    return make_float4(__fadd_rn(sum.x, __fmul_rn(weight, value.x)), __fadd_rn(sum.y, __fmul_rn(weight, value.y)),
                       __fadd_rn(sum.z, __fmul_rn(weight, value.z)), __fadd_rn(sum.w, __fmul_rn(weight, value.w)));
}

EP_DEVICE void combine(const Combine& job) {
    const int ranks = ep::num_ranks(), me = ep::rank(), thread = ep::thread_in_block();
    if (thread < ranks) ep::signal_set(job.memory.flags + me, 1, thread);  // my rows were complete before this kernel
    for (int from = 0; from < ranks; ++from) {
        if (!ep::wait_until_ge_block(job.memory.flags + from, 1, {ep::kPhaseCombine, from, from})) return;
    }
    for (int token = thread / 32; token < job.tokens; token += kThreads / 32) {
        for (int i = thread % 32; i < job.vectors; i += 32) {
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (int r = 0; r < ranks; ++r) {
                const int place = job.send_index[token * ranks + r];
                if (place < 0) continue;
                const float4* const row = ep::peer_ptr(job.rows, r) + (job.first_row[r] + place) * job.vectors;
                sum = add_weighted(sum, job.weights[token * ranks + r], row[i]);
            }
            job.out[token * job.vectors + i] = sum;
        }
    }
}

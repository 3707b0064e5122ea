// The other half of every test of exercise 09_own_dispatch: a whole dispatch. The examined parts are the learner's, all
// others are the grader's own.
#include <calls/ex09_own_dispatch.cuh>
#include <grader.cuh>

namespace {

using namespace ep;

// The numbers of one run; ex09_own_dispatch.py sets others than these defaults (job_of).
struct Job {
    int64_t max_tokens = 6;
    int64_t row_vectors = 3;
    int64_t top_k = 3;
    int64_t experts_per_rank = 3;
    int64_t epoch = 1;     // of the first of `rounds` dispatches
    int64_t rounds = 2;    // the ranks meet in between
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t missing = 0;   // for the last rank's last token: 1: its packets never come, 2: its row never comes
};

enum Part { kWanted = 1, kTell = 2, kSendRow = 4, kReceive = 8, kAll = 16 };

EP_DEVICE uint64_t bits_of(const given::Dispatch& my, const int* choices, int count, int r) {
    uint64_t bits = 0;
    for (int k = 0; k < count; ++k) {
        const int local = choices[k] - r * my.experts_per_rank;
        if (choices[k] >= 0 && local >= 0 && local < my.experts_per_rank) bits |= 1ull << local;
    }
    return bits;
}

EP_DEVICE void tell(const Job& job, const given::Dispatch& my, const int* choices, int count, int token) {
    if (job.missing == 1 && rank() == num_ranks() - 1 && token == my.num_tokens - 1) return;
    if (job.learners & kTell) return piece_tell_warp(my, choices, count, token);
    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
        TaggedWord* const packet = my.routes + rank() * my.max_tokens + token;
        st_relaxed_sys_u64x2(&peer_ptr(packet, r)->data, bits_of(my, choices, count, r), my.epoch);
    }
}

EP_DEVICE void send_row(const Job& job, const given::Dispatch& my, const int4* row, const int* choices, int token) {
    if (job.learners & kSendRow) return piece_send_row_warp(my, row, choices, my.top_k, token);
    if (job.missing == 2 && rank() == num_ranks() - 1 && token == my.num_tokens - 1) return;
    const int64_t slot = rank() * my.max_tokens + token;
    for (int r = 0; r < num_ranks(); ++r) {
        if (bits_of(my, choices, my.top_k, r) == 0) continue;
        for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) {
            peer_ptr(my.rows, r)[slot * my.row_vectors + i] = row[i];  // role: the sender, writing a row
        }
        __syncwarp();
        if (lane_id() == 0) st_release_sys_u64(peer_ptr(my.arrived, r) + slot, my.epoch);
    }
}

EP_DEVICE bool receive(const Job& job, const given::Dispatch& my, int source, int token, uint64_t* bits) {
    if (job.learners & kReceive) return piece_receive_warp(my, source, token, bits);
    const int64_t slot = source * my.max_tokens + token;
    uint64_t seen = 0, found = 0;
    while (seen != my.epoch) {
        ld_relaxed_sys_u64x2(&my.routes[slot].data, &found, &seen);  // role: the receiver, waiting for a packet
    }
    *bits = found;
    if (found == 0) return true;
    while (ld_acquire_sys_u64(my.arrived + slot) < my.epoch) sleep_ns(20);
    for (int e = 0; e < my.experts_per_rank; ++e) {
        if (!(found >> e & 1)) continue;
        const int64_t row = static_cast<int64_t>(e) * num_ranks() * my.max_tokens + slot;
        for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) {
            my.out[row * my.row_vectors + i] = my.rows[slot * my.row_vectors + i];  // role: the receiver, reading a row
        }
    }
    return true;
}

EP_DEVICE bool one_dispatch(const Job& job, int playing, const given::Dispatch& my, const int4* x, const int* topk_idx,
                            uint64_t* answers) {
    if (warp_id() >= playing) return true;
    const int first = blockIdx.x * playing + warp_id(), warps = gridDim.x * playing;
    const auto exists = [&](int token) { return token < my.num_tokens; };
    const auto choices = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
    const auto row = [&](int token) { return x + static_cast<int64_t>(token) * my.row_vectors; };
    const auto take = [&](int source, int token) {
        uint64_t bits = ~uint64_t{0};
        const bool ok = receive(job, my, source, token, &bits);
        if (answers) answers[lane_id()] += ok;
        if (!__all_sync(kFullWarp, ok)) return false;  // also if the learner told only some lanes
        if (lane_id() == kWarpSize - 1) my.wanted[source * my.max_tokens + token] = bits;
        return true;
    };
    for (int token = first; token < my.max_tokens; token += warps) {
        tell(job, my, choices(token), exists(token) ? my.top_k : 0, token);
    }
    for (int token = first; token < my.num_tokens; token += warps) send_row(job, my, row(token), choices(token), token);
    for (int i = first; i < num_ranks() * my.max_tokens; i += warps) {
        if (!take(i / my.max_tokens, i % my.max_tokens)) return false;
    }
    return true;
}

// A barrier of all ranks; if there are several rounds, the grid has one block.
EP_DEVICE void meet(uint64_t* met, uint64_t epoch) {
    __syncthreads();
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
        st_release_sys_u64(peer_ptr(met, r) + rank(), epoch);
    }
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
        while (ld_acquire_sys_u64(met + r) < epoch) sleep_ns(20);
    }
    __syncthreads();
}

struct Memory {
    uint64_t *met, *masks, *noted;
    const int4* x;
    const int* topk_idx;
};

EP_DEVICE void play(const Job& job, int playing, given::Dispatch my, const Memory& given) {
    if (job.learners & kWanted) {
        for (int i = caller(); i >= 0 && i < my.num_tokens * num_ranks(); i += warps_in_block() * kCallers) {
            given.masks[i] =
                piece_wanted_on(my, given.topk_idx + i / num_ranks() * job.top_k, my.top_k, i % num_ranks());
        }
        return;
    }
    for (int64_t round = 0; round < job.rounds; ++round, ++my.epoch) {
        const int4* const rows_in = given.x + round * job.max_tokens * job.row_vectors;
        const int* const choices = given.topk_idx + round * job.max_tokens * job.top_k;
        bool ok = true;
        if (job.learners & kAll) {
            piece_dispatch(my, rows_in, choices);
        } else {
            ok = one_dispatch(job, playing, my, rows_in, choices, job.missing ? given.noted : nullptr);
        }
        if ((!ok || job.missing) && lane_id() == 0) note_fault(given.noted + kWarpSize);
        if (!ok) return;
        if (round + 1 < job.rounds) meet(given.met, my.epoch);
        my.out += my.experts_per_rank * num_ranks() * job.max_tokens * job.row_vectors;
        my.wanted += num_ranks() * job.max_tokens;
    }
}

}  // namespace

//   rows, arrived, routes, met   symmetric; met [ranks]
//   x [rounds, max_tokens, row_vectors]; topk_idx [rounds, max_tokens, top_k]; tokens [1]: of this rank
//   out [rounds, experts_per_rank, ranks * max_tokens, row_vectors]; wanted [rounds, ranks * max_tokens]
//   masks [max_tokens, ranks]: wanted_on of the first round; noted: [32] answers of the lanes, a timeout (note_fault)
//   playing: how many warps of a block call the piece
extern "C" __global__ void examine(int task, int4* rows, uint64_t* arrived, TaggedWord* routes, uint64_t* met,
                                   const int4* x, const int* topk_idx, const int* tokens, int4* out, uint64_t* wanted,
                                   uint64_t* masks, uint64_t* noted, const int64_t* numbers, int playing) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const given::Dispatch my = {rows,
                                arrived,
                                routes,
                                out,
                                wanted,
                                static_cast<uint64_t>(job.epoch),
                                *tokens,
                                static_cast<int>(job.max_tokens),
                                static_cast<int>(job.row_vectors),
                                static_cast<int>(job.top_k),
                                static_cast<int>(job.experts_per_rank)};
    play(job, playing, my, {met, masks, noted, x, topk_idx});
    meet_at_the_end();
}

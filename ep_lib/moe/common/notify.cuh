// The kinds of signals between all ranks (<ep/all_ranks.cuh>), and the exchange of counts that gives every row its final
// place.
#pragma once
#include <ep/all_ranks.cuh>
#include <ep/pieces.cuh>
#include <ep/slots.cuh>
#include <ep/write_signal.cuh>
#include <moe/common/failure.cuh>

namespace ep {

enum SignalKind {
    kSignalCounts,  // dispatch: my counts are in your table, and my receive area is free
    kSignalEnter,   // dispatch with a handle: my receive area is free
    kSignalRows,    // dispatch: all my rows are in your receive area
    kSignalStaged,  // combine: you may read my rows
    kSignalPulled,  // combine: I have read all of yours
    kNumSignals
};

// After a wait: records which ranks sent another tag than `tag`, for example because they passed another handle. True,
// in all threads of the block, if all tags are equal.
//   differs  [ranks]   this rank's: the bits in which the tags differ; the host set it to 0
EP_DEVICE bool compare_tags(const Signals& signals, SignalKind kind, uint64_t tag, int* differs) {
    int different = 0;
    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        const int bits = static_cast<int>(signals.tags[kind * num_ranks() + peer] ^ tag);
        if (bits != 0) differs[peer] = bits;
        different |= bits;
    }
    return __syncthreads_or(different) == 0;
}

struct NotifyArgs {
    Signals signals;
    int* counts;         // symmetric [source, ranks + 1]: tokens from source to each rank, then the source's `options`
    int* expert_counts;  // symmetric [source, experts_per_rank]: choices of this rank's experts by the source's tokens
    int experts_per_rank;
    int options;  // must be the same on all ranks; the host compares
};

// Sends the counts by the functions of the course's first exercise, <ep/write_signal.cuh>: a warp per rank, three
// writes under one signal. Called by one block. Only for a learner's own functions, since `notify` itself is faster.
EP_DEVICE bool notify_by_pieces(const NotifyArgs& args, const int* rank_counts, const int* expert_counts) {
    const int me = rank(), ranks = num_ranks(), experts = args.experts_per_rank;
    uint64_t* const flags = args.signals.flags + kSignalCounts * ranks;
    const uint64_t grows_by = args.signals.epoch - read_signal(flags + me);  // all ranks' entries are alike
    int* const counts = args.counts + me * (ranks + 1);
    __syncthreads();  // all have read the flag
    for (int peer = warp_id(); peer < ranks; peer += warps_in_block()) {
        if (args.signals.leave_out(peer)) continue;
        const Write writes[] = {
            {counts, rank_counts, ranks * sizeof(int)},
            {counts + ranks, &args.options, sizeof(int)},
            {args.expert_counts + me * experts, expert_counts + peer * experts, experts * sizeof(int)}};
        write_many_and_signal_warp(writes, 3, flags + me, grows_by, peer);
        if (lane_id() == 0) count_piece(kCountSignals);
    }
    int failed = 0;
    for (int peer = thread_in_block(); peer < ranks; peer += threads_in_block()) {
        if (!args.signals.leave_out(peer)) failed |= !wait_for_signal(flags + peer, args.signals.epoch, peer);
    }
    return __syncthreads_or(failed) == 0;
}

// Sends this rank's counts to every rank, waits for those of all, and adds them up. Called by one block. (A masked rank
// counts as having no tokens: <moe/common/regroup.cu> has zeroed its part of the tables.)
//   plan  out: first_row[ranks]      the first of this rank's rows on each destination (rows are sorted by source)
//              received[ranks]       rows that come from each source
//              options[ranks]        what each source passed
//              tokens[experts_per_rank]   choices of each of this rank's experts, by all ranks
// False, the same in all threads, if a rank did not come.
EP_DEVICE bool notify(const NotifyArgs& args, const int* rank_counts, const int* expert_counts, int* plan) {
    const int me = rank(), ranks = num_ranks(), columns = ranks + 1;
    const int thread = thread_in_block(), num_threads = threads_in_block();

    if constexpr (detail::kCountsPieces) {
        if (!notify_by_pieces(args, rank_counts, expert_counts)) return false;
    } else {
        for (int i = thread; i < ranks * columns; i += num_threads) {
            const int peer = i / columns, column = i % columns;
            if (args.signals.leave_out(peer)) continue;
            peer_ptr(args.counts, peer)[me * columns + column] = column < ranks ? rank_counts[column] : args.options;
        }
        for (int i = thread; i < ranks * args.experts_per_rank; i += num_threads) {
            const int peer = i / args.experts_per_rank, expert = i % args.experts_per_rank;
            if (args.signals.leave_out(peer)) continue;
            peer_ptr(args.expert_counts, peer)[me * args.experts_per_rank + expert] = expert_counts[i];
        }
        __syncthreads();
        signal_all(args.signals, kSignalCounts);
        if (!wait_for_all(args.signals, kSignalCounts, args.signals.epoch, kPhaseLayout)) return false;
    }

    for (int r = thread; r < ranks; r += num_threads) {
        plan[r] = rows_before(args.counts + r, columns, me);
        plan[ranks + r] = args.counts[r * columns + me];
        plan[2 * ranks + r] = args.signals.leave_out(r) ? args.options : args.counts[r * columns + ranks];
    }
    for (int e = thread; e < args.experts_per_rank; e += num_threads) {
        int tokens = 0;
        for (int source = 0; source < ranks; ++source) tokens += args.expert_counts[source * args.experts_per_rank + e];
        plan[3 * ranks + e] = tokens;
    }
    return true;
}

}  // namespace ep

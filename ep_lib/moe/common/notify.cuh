// Barriers between all ranks, and the exchange of counts that gives every row its final place.
//
// Direct mode has one table of 64-bit signals in symmetric memory, signals[kind][source]. Only `source` writes its entry,
// and always the epoch it is in. Epochs are 1, 2, 3, ... alike on all ranks, one for each operation, so entries only
// grow, are never reset, and "entry >= epoch" says that the source has come at least this far. A later epoch does no
// harm: no rank writes in an epoch before all ranks have entered it, which they do after the previous one.
#pragma once
#include <ep/pieces.cuh>
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

struct Signals {
    uint64_t* flags;  // symmetric [kNumSignals, ranks]
    uint64_t* tags;   // symmetric [kNumSignals, ranks]: a word that comes with each signal
    uint64_t epoch;   // of this operation
    uint64_t masked;  // bit r: rank r is left out: nothing is sent to it or expected from it
    EP_DEVICE bool leave_out(int r) const { return (masked >> r & 1) != 0; }
};

// The threads of one block signal to every rank, this one too. Publishes all that the block did before its last
// barrier.
EP_DEVICE void signal_all(const Signals& signals, SignalKind kind, uint64_t tag = 0) {
    const int mine = kind * num_ranks() + rank();
    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        *peer_ptr(signals.tags + mine, peer) = tag;
        st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
    }
}

// All threads of a block wait until every rank has signalled. False if one did not in time: return from the kernel
// then.
EP_DEVICE bool wait_for_all(const Signals& signals, SignalKind kind, uint64_t epoch, Phase phase) {
    int failed = 0;
    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
    }
    return __syncthreads_or(failed) == 0;
}

// After a wait: records which ranks sent another tag than `tag`. Ranks that pass different handles are found this way.
// True, in all threads of the block, if there are none.
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

enum class LastBlock : int { kNo, kYes, kAfterFailure };

constexpr uint32_t kFailedBlock = 1 << 16;  // what a block that failed adds to the count beside 1

// Not kNo in exactly one block of `blocks`: the last to call. It then sees all that the others wrote before they called,
// and what it releases publishes their work too. `finished_blocks` is 0 between kernels. kAfterFailure if `ok` was false
// in a thread of any block.
EP_DEVICE LastBlock last_block(uint32_t* finished_blocks, uint32_t blocks, bool ok) {
    __shared__ LastBlock last;
    const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;
    if (thread_in_block() == 0) {
        fence_sys();  // this block's rows, also those on peers, come before its count
        const uint32_t count = atom_add_acq_rel_gpu_u32(finished_blocks, mine) + mine;
        last = count % kFailedBlock != blocks ? LastBlock::kNo
               : count < kFailedBlock         ? LastBlock::kYes
                                              : LastBlock::kAfterFailure;
        if (last != LastBlock::kNo) st_relaxed_gpu_u32(finished_blocks, 0);
    }
    __syncthreads();
    return last;
}

// True in exactly one block of the grid, or of `blocks` of them, where none can fail.
EP_DEVICE bool is_last_block(uint32_t* finished_blocks, uint32_t blocks) {
    return last_block(finished_blocks, blocks, true) != LastBlock::kNo;
}
EP_DEVICE bool is_last_block(uint32_t* finished_blocks) { return is_last_block(finished_blocks, gridDim.x); }

struct NotifyArgs {
    Signals signals;
    int* counts;         // symmetric [source, ranks + 1]: tokens from source to each rank, then the source's `options`
    int* expert_counts;  // symmetric [source, experts_per_rank]: choices of this rank's experts by the source's tokens
    int experts_per_rank;
    int options;  // must be the same on all ranks; the host compares
};

// One block. Tells the others by the functions of the course's first exercise, <ep/write_signal.cuh>: a warp per rank,
// three writes under one signal. Only where a learner's own are to carry it, since `notify` itself is faster.
EP_DEVICE bool notify_by_pieces(const NotifyArgs& args, const int* rank_counts, const int* expert_counts) {
    const int me = rank(), ranks = num_ranks(), experts = args.experts_per_rank;
    uint64_t* const flags = args.signals.flags + kSignalCounts * ranks;
    const uint64_t grows_by = args.signals.epoch - read_signal(flags + me);  // every rank has seen what this one has
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

// One block. Tells every rank what this one sends, waits for the same from all, and adds up. (A rank that is left out
// counts as having no tokens: its part of the tables is zero since <moe/common/regroup.cu>.)
//   plan  out: first_row[ranks]      where this rank's rows begin on each destination (rows are sorted by source)
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
        int first_row = 0;
        for (int source = 0; source < me; ++source) first_row += args.counts[source * columns + r];
        plan[r] = first_row;
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

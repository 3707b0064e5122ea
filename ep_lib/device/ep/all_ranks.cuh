// One signal from every rank to every rank, for the work of a whole grid: how dispatch and combine end.
//
//     all blocks write rows   -->  last_block: which block is the last to be done?
//     that one signals        -->  signal_all: "all my rows are there"
//     and waits               -->  wait_for_all: "all your rows are here"
//
// There is one table of 64-bit signals in symmetric memory, flags[kind][source]. Only `source` writes its entry, and
// always the epoch it is in. Epochs are 1, 2, 3, ... alike on all ranks, one for each operation, so entries only grow,
// are never reset, and "entry >= epoch" says that the source has come at least this far. A later epoch does no harm: no
// rank writes in an epoch before all ranks have entered it, which they do after the previous one.
//
// The kinds of signals are in <moe/common/notify.cuh>. Exercise 06_arrivals lets you write these functions yourself.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

namespace ep {

struct Signals {
    uint64_t* flags;  // symmetric [kinds, ranks]
    uint64_t* tags;   // symmetric [kinds, ranks]: a word that comes with each signal
    uint64_t epoch;   // of this operation
    uint64_t masked;  // bit r: rank r is left out: nothing is sent to it or expected from it
    EP_DEVICE bool leave_out(int r) const { return (masked >> r & 1) != 0; }
};

// The threads of one block signal to every rank, this one too: the tag, and then the epoch. Publishes all that the
// block did before its last barrier. Here and below, blocks may have two or three dimensions: use thread_in_block().
EP_DEVICE void signal_all(const Signals& signals, int kind, uint64_t tag = 0) {
    const int mine = kind * num_ranks() + rank();
    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        *peer_ptr(signals.tags + mine, peer) = tag;
        st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
    }
}

// All threads of a block wait until every rank has signalled `epoch` (not necessarily signals.epoch) or a later one;
// then each of them may read what the ranks wrote before. False, in all threads, if a rank did not come in time: return
// from the kernel then. The recorded fault is about {phase, that rank, kind}.
EP_DEVICE bool wait_for_all(const Signals& signals, int kind, uint64_t epoch, Phase phase) {
    int failed = 0;
    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
    }
    return __syncthreads_or(failed) == 0;
}

enum class LastBlock : int { kNo, kYes, kAfterFailure };

constexpr uint32_t kFailedBlock = 1 << 16;  // a block that failed adds this to the count, and 1

// All threads of `blocks` blocks call. Not kNo in exactly one block: the last to call. It then sees all that the others
// wrote before they called, and what it releases publishes their work too. kAfterFailure if `ok` was false in a thread of
// any block. `finished_blocks` is 0 between kernels, so the last block puts it back to 0.
EP_DEVICE LastBlock last_block(uint32_t* finished_blocks, uint32_t blocks, bool ok) {
    __shared__ LastBlock last;
    const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;
    if (thread_in_block() == 0) {
        fence_sys();  // to be safe: the count's release covers rows on peers, too, and the last block passes them on
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

}  // namespace ep

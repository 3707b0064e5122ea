// Exercise 06_arrivals, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (4 points): signal to every rank
    // Entry [kind][rank()] of each peer's table: kind * num_ranks() + rank(). The threads share the peers
    // between them. A rank for which leave_out is true gets nothing; this rank gets its own signal like all
    // others. The tag is plain data: whoever sees the epoch may read it at once, so which of the two is stored
    // first, and how is the second one stored?
    assert(!"Task 1 is still to do: signal to every rank");
    // end of TASK 1
}

// All threads of a block wait until every rank has signalled `epoch` (not necessarily signals.epoch) or a later one;
// then each of them may read what the ranks wrote before. False, in all threads, if a rank did not come in time: return
// from the kernel then. The recorded fault is about {phase, that rank, kind}.
EP_DEVICE bool wait_for_all(const Signals& signals, int kind, uint64_t epoch, Phase phase) {
    // TASK 2 (4 points): wait for every rank
    // The entries are this rank's own, flags[kind][source], and wait_until_ge (with {phase, peer, kind}) waits
    // for one of them. Again the threads share the ranks. In the end all threads must give the same answer, and
    // each may read what ANY rank wrote, although another thread waited for that rank: __syncthreads_or does
    // both at once.
    assert(!"Task 2 is still to do: wait for every rank");
    return false;
    // end of TASK 2
}

enum class LastBlock : int { kNo, kYes, kAfterFailure };

constexpr uint32_t kFailedBlock = 1 << 16;  // a block that failed adds this to the count, and 1

// All threads of `blocks` blocks call. Not kNo in exactly one block: the last to call. It then sees all that the others
// wrote before they called, and what it releases publishes their work too. kAfterFailure if `ok` was false in a thread of
// any block. `finished_blocks` is 0 between kernels, so the last block puts it back to 0.
EP_DEVICE LastBlock last_block(uint32_t* finished_blocks, uint32_t blocks, bool ok) {
    __shared__ LastBlock last;
    // TASK 3 (5 points): which block is the last
    // Every block adds 1 to *finished_blocks, once, by one thread, and 1 + kFailedBlock if `ok` was false in any
    // of its threads. Whoever sees the count reach `blocks` is the last. The barrier before the count puts the
    // whole block's rows before it. Then two directions: the count must publish this block's rows, and the last
    // block must see everybody's: which of the four orderings of atom_add_..._gpu_u32 does both? (It covers rows
    // on peers, too: what the last block has seen in this way, its signal at system scope passes on. A fence_sys
    // before the count does no harm, and PTX does not ask for it.) All threads of the block need the answer
    // (`last` is shared memory), and the next kernel needs a zero.
    assert(!"Task 3 is still to do: which block is the last");
    return LastBlock::kNo;
    // end of TASK 3
}

// True in exactly one block of the grid, or of `blocks` of them, where none can fail.
EP_DEVICE bool is_last_block(uint32_t* finished_blocks, uint32_t blocks) {
    return last_block(finished_blocks, blocks, true) != LastBlock::kNo;
}
EP_DEVICE bool is_last_block(uint32_t* finished_blocks) { return is_last_block(finished_blocks, gridDim.x); }

}  // namespace ep

// Operations that count themselves: what lets a CUDA graph replay a dispatch or a combine.
//
// The number of an operation is in every signal (<moe/common/notify.cuh>). Here it comes not from the host, whose arguments a
// graph would repeat, but from the GPU: each kernel reads how many operations this rank has completed, and its last
// block counts one more. All ranks launch the same operations in the same order, so the numbers agree.
//
// Every operation ends with a wait for a signal of the same operation from all ranks. So a rank that is in operation n
// knows: all others have begun n - 1, and completed n - 2 with all that was launched before n - 1. What belongs to an
// operation and lies twice in memory, by parity, needs no other care. What lies there once, like the area in which rows
// arrive, may be written by an operation if the one before was of another kind; else all meet first (`meet_again`).
#pragma once
#include <moe/common/notify.cuh>

namespace ep {

struct BoardState {                        // of this rank alone; all zero at the start
    uint64_t completed;                    // operations
    uint64_t last_dispatch, last_combine;  // the number of the last one of each kind
    uint32_t finished_blocks;
    uint32_t next_item;   // the next token or group of rows, for warps that take them as they come
    uint32_t bad_expert;  // of `route`: 0, or the first element that is wrong, counted from the end
    uint32_t bad_weight;
    uint32_t next_token;  // where groups of rows are handed out at the same time
    uint32_t copied_blocks;
};

struct Board {
    uint64_t* flags;  // symmetric [kNumSignals, ranks]
    uint64_t* notes;  // symmetric [2, kNumSignals, ranks]: by parity of the operation
    BoardState* state;
};

// The signals of the operation that begins with this kernel; the same in all blocks.
EP_DEVICE Signals this_operation(const Board& board) {
    const uint64_t operation = ld_relaxed_gpu_u64(&board.state->completed) + 1;
    return {board.flags, board.notes + operation % 2 * kNumSignals * num_ranks(), operation};
}

// All blocks, before they write what the last operation of this kind (`last`) may have left for others to read. False,
// in all threads, if a rank did not come.
EP_DEVICE bool meet_again(const Signals& signals, uint64_t last, Phase phase) {
    if (last + 1 != signals.operation) return true;
    if (blockIdx.x == 0) signal_all(signals, kSignalEnter);
    return wait_for_all(signals, kSignalEnter, signals.operation, phase);
}

// The last block, at the very end.
EP_DEVICE void complete_operation(const Board& board, const Signals& signals) {
    if (thread_in_block() != 0) return;
    st_relaxed_gpu_u32(&board.state->next_item, 0);
    st_relaxed_gpu_u32(&board.state->next_token, 0);
    st_relaxed_gpu_u64(&board.state->completed, signals.operation);
}

}  // namespace ep

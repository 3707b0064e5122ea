// Epochs number the operations on the GPU, so that a CUDA graph can replay a dispatch or a combine.
//
// Every signal carries the epoch (<moe/common/notify.cuh>). A graph would repeat an epoch that the host passes, so it
// comes from the GPU: each kernel reads the number of operations that this rank has completed, and its last block
// increments the number. All ranks launch the same operations in the same order, so their epochs agree.
//
// Every operation ends with a wait for a signal of the same epoch from all ranks. So a rank in epoch n knows that all
// others have begun epoch n - 1 and completed n - 2, with all launches before n - 1. Double-buffered data (by parity)
// is therefore safe. Single-buffered data, like the receive area, may be written at once if the previous operation was
// of another kind; else a barrier comes first (`barrier_before_reuse`). A dispatch and a combine that share an area are
// of one kind.
#pragma once
#include <moe/common/notify.cuh>

namespace ep {

struct WorkspaceState {                    // of this rank alone; all zero at the start
    uint64_t completed;                    // operations
    uint64_t last_dispatch, last_combine;  // the epochs of the last operations of each kind
    uint32_t finished_blocks;
    uint32_t next_item;   // the next token or group of rows, for warps that take them dynamically
    uint32_t bad_expert;  // set by `notify_dispatch`: 0, or the first wrong element, counted from the end
    uint32_t bad_weight;
    uint32_t next_token;  // the next token, where warps take groups of rows by next_item at the same time
    uint32_t copied_blocks;
    uint32_t broken;  // see <moe/common/failure.cuh>
    uint32_t reserved;
    uint64_t masked;  // Signals::masked; the host writes it while no kernel runs (<moe/common/regroup.cu>)
};

struct Workspace {
    uint64_t* flags;  // symmetric [kNumSignals, ranks]
    uint64_t* tags;   // symmetric [2, kNumSignals, ranks]: by parity of the epoch
    WorkspaceState* state;
    uint32_t* broken_on_host;
};

// The signals of the operation that begins with this kernel; the same in all blocks.
EP_DEVICE Signals this_epoch(const Workspace& workspace) {
    const uint64_t masked = workspace.state->masked;  // loaded together with the epoch
    const uint64_t epoch = ld_relaxed_gpu_u64(&workspace.state->completed) + 1;
    return {workspace.flags, workspace.tags + epoch % 2 * kNumSignals * num_ranks(), epoch, masked};
}

// Whether the operation fails; called by all threads of a block.
EP_DEVICE bool operation_is_failing(const Workspace& workspace) { return block_is_failing(&workspace.state->broken); }

// Called by one block whose operation has failed.
EP_DEVICE void break_off(const Workspace& workspace) {
    if (thread_in_block() == 0) break_off(Broken{&workspace.state->broken, workspace.broken_on_host});
}

// A barrier with a word from every rank, called by all blocks. False, in all threads, if a rank did not come.
EP_DEVICE bool enter_together(const Signals& signals, uint64_t word, Phase phase) {
    if (blockIdx.x == 0) signal_all(signals, kSignalEnter, word);
    return wait_for_all(signals, kSignalEnter, signals.epoch, phase);
}

// The same before writing to data that other ranks may still read from the last operation of this kind (`last`).
EP_DEVICE bool barrier_before_reuse(const Signals& signals, uint64_t last, Phase phase) {
    return last + 1 != signals.epoch || enter_together(signals, 0, phase);
}

// Called by the last block, at the very end.
EP_DEVICE void complete_epoch(const Workspace& workspace, const Signals& signals) {
    if (thread_in_block() != 0) return;
    st_relaxed_gpu_u32(&workspace.state->next_item, 0);
    st_relaxed_gpu_u32(&workspace.state->next_token, 0);
    st_relaxed_gpu_u64(&workspace.state->completed, signals.epoch);
}

}  // namespace ep

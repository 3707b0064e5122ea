// Counts of what goes through the functions that a learner may have written: ep-lib demo --mine.
//
// The library counts where it calls such a function, and not inside it, so that no piece can forget to count. A kernel
// without a learner's piece counts nothing, and the call costs nothing.
#pragma once
#include <ep/detail/counts_pieces.cuh>
#include <ep/memory.cuh>

namespace ep {

// Indices of HeapHeader::piece_counts; solutions/*/exercise.toml names them.
enum PieceCount : int {
    kCountSignals,  // messages by the functions of <ep/write_signal.cuh>
    kCountRingRows,
    kCountCommands,  // through <ep/proxy_ring.cuh> to the host's proxy
    kCountDispatchRows,
    kCountCombineRows,
    kCountPackets,
    kCountFp8Rows,
    kCountOwnRows,  // of tutorial_kernels/09_own_dispatch.cu
    kNumPieceCounts
};
static_assert(kNumPieceCounts <= kMaxPieceCounts, "HeapHeader has no room for another one");

// One thread adds `n`. Any number of threads may call.
EP_DEVICE void count_piece(PieceCount which, uint64_t n = 1) {
    if constexpr (detail::kCountsPieces) {
        HeapHeader* const header = reinterpret_cast<HeapHeader*>(detail::fault_record());  // which is its first member
        red_add_relaxed_gpu_u64(header->piece_counts + which, n);
    }
}

}  // namespace ep

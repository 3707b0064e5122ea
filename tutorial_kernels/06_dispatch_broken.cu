// 06_dispatch.cu with its classic mistakes, one each. The checker finds them all; only some of them show in the result.
#include <moe/common/dispatch.cuh>
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

using namespace ep;

// Rung 1 with a place that is looked up and raised in two steps: two tokens may read the same number, and both then
// write to the same row.
//   next_of_mine  [ranks]   0 at the start
extern "C" __global__ void dispatch_without_atomics(DispatchArgs args, Signals signals, uint32_t* finished_blocks,
                                                    const int4* x, const int* send_index, int* next_of_mine,
                                                    const int* first_row) {
    const int stride = static_cast<int>(gridDim.x) * threads_in_block();
    for (int token = blockIdx.x * threads_in_block() + thread_in_block(); token < args.num_tokens; token += stride) {
        for (int to = 0; to < num_ranks(); ++to) {
            if (send_index[token * num_ranks() + to] < 0) continue;
            const int index = first_row[to] + next_of_mine[to]++;
            int4* const row = peer_ptr(args.rows, to) + index * args.row_vectors;
            for (int i = 0; i < args.row_vectors; ++i) row[i] = x[token * args.row_vectors + i];
        }
    }
    if (!is_last_block(finished_blocks)) return;
    signal_all(signals, kSignalRows);
    wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);
}

// Rung 2 that signals too early: block 0 says "all my rows are there" when only its own are.
extern "C" __global__ void dispatch_block_0_signals(DispatchArgs args, Signals signals, uint32_t* finished_blocks,
                                                    const int4* x, const int* send_index, int* next_of_mine,
                                                    const int* first_row) {
    const int stride = static_cast<int>(gridDim.x) * threads_in_block();
    for (int token = blockIdx.x * threads_in_block() + thread_in_block(); token < args.num_tokens; token += stride) {
        for (int to = 0; to < num_ranks(); ++to) {
            const int place = send_index[token * num_ranks() + to];
            if (place < 0) continue;
            int4* const row = peer_ptr(args.rows, to) + (first_row[to] + place) * args.row_vectors;
            for (int i = 0; i < args.row_vectors; ++i) row[i] = x[token * args.row_vectors + i];
        }
    }
    __syncthreads();
    if (blockIdx.x != 0) return;
    signal_all(signals, kSignalRows);
    wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);
}

// Passes arrived data on: many copies in one launch, to GPUs that loads and stores reach.
//
// A receiver behind a NIC (or a proxy) gets data for several GPUs of its host. It describes each piece as a CopyTask; the
// blocks of a kernel wait for a task's signal, cut it into chunks, and each copies whole chunks with 16-byte accesses, as
// soon as they are there. The idea is UCCL's peer_copy_kernel_vec_batched.
#pragma once
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

namespace ep {

// Pointers are this rank's, into its symmetric heap; `target` and `done` stand for the peer's copies.
struct CopyTask {
    char* target;
    const char* source;
    uint64_t bytes;
    const uint64_t* arrived;  // the copy begins when this is at least `expected`; null: the data is there
    uint64_t expected;
    uint64_t* done;  // grows by 1 with each chunk that has been copied; null: it is not counted
    int32_t peer;
    int32_t reserved;
};

// All threads of all blocks call with the same arguments. `chunk_bytes`: a multiple of 16. False if a wait ran into its
// limit.
EP_DEVICE bool peer_copy(const CopyTask* tasks, int count, uint64_t chunk_bytes) {
    uint64_t turn = 0;  // chunks go to blocks in turns, over all tasks
    for (int t = 0; t < count; ++t) {
        const CopyTask task = tasks[t];
        bool waited = task.arrived == nullptr;
        for (uint64_t at = 0; at < task.bytes; at += chunk_bytes, ++turn) {
            if (turn % gridDim.x != blockIdx.x) continue;
            if (!waited && !wait_until_ge_block(task.arrived, task.expected, {kPhaseSignal, task.peer, t}))
                return false;
            waited = true;
            const uint64_t rest = task.bytes - at;
            put_block(task.target + at, task.source + at, rest < chunk_bytes ? rest : chunk_bytes, task.peer);
            if (task.done == nullptr) continue;
            __syncthreads();  // all threads have stored their part
            if (thread_in_block() == 0) signal_add(task.done, 1, task.peer);
        }
    }
    return true;
}

}  // namespace ep

// The outputs of a failed operation, which cannot be mistaken for results.
//
// A wait that reached its limit leaves a FaultRecord (<ep/wait.cuh>), and the host raises it at its next call. Until
// then kernels that are queued, or replayed by a CUDA graph, still run. So every kernel checks for a fault first, and
// fills its outputs with NaN instead of doing its work; counts become 0, which is safe for a grouped GEMM.
//
// An operation that failed after it had begun leaves its ranks permanently out of step, even after the host has raised
// the fault and cleared the record. `broken` marks this: each mode has such a word in this GPU's memory, for kernels,
// and a copy in host memory.
#pragma once
#include <ep/wait.cuh>

namespace ep {

struct Broken {
    uint32_t* flag;     // in this rank's memory: permanently 1 after an operation has failed midway
    uint32_t* on_host;  // the same for the host
};

// True if an earlier wait of this rank failed; the same in all threads of the block.
EP_DEVICE bool block_has_fault() { return __syncthreads_or(thread_in_block() == 0 && has_fault()) != 0; }

// Whether this rank has a fault, or an operation of this mode failed earlier. Called by one thread; two concurrent
// loads.
EP_DEVICE bool is_failing(const uint32_t* broken) {
    const uint32_t is_broken = ld_relaxed_gpu_u32(broken);
    return has_fault() | (is_broken != 0);
}

// The same for a block; all its threads get the same result.
EP_DEVICE bool block_is_failing(const uint32_t* broken) {
    return __syncthreads_or(thread_in_block() == 0 && is_failing(broken)) != 0;
}

// Marks the mode as broken; true for the first caller. Called by one thread.
EP_DEVICE bool break_off(const Broken& broken) {
    if (atom_exch_relaxed_gpu_u32(broken.flag, 1) != 0) return false;
    st_relaxed_sys_u32(broken.on_host, 1);
    return true;
}

// This thread's number among the threads that fill an array, and their number.
struct Fillers {
    int64_t index, count;
};
EP_DEVICE Fillers fillers_of_block() { return {thread_in_block(), threads_in_block()}; }
EP_DEVICE Fillers fillers_of_grid() {
    const int64_t threads = threads_in_block();
    return {blockIdx.x * threads + thread_in_block(), gridDim.x * threads};
}

EP_DEVICE void fill_words(void* to, int64_t bytes, int value, const Fillers& fillers) {
    int* const words = static_cast<int*>(to);
#pragma unroll 1
    for (int64_t i = fillers.index; i < bytes / 4 && words; i += fillers.count) words[i] = value;
}

// All bits set: NaN in bfloat16, float32 and FP8 (E4M3), -1 as an integer. `to` may be null; `bytes` are whole words.
EP_DEVICE void fill_with_nan(void* to, int64_t bytes, const Fillers& fillers) { fill_words(to, bytes, -1, fillers); }

EP_DEVICE void fill_with_zeros(int* to, int64_t count, const Fillers& fillers) {
    fill_words(to, 4 * count, 0, fillers);
}

}  // namespace ep

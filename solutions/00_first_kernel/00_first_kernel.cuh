// Numbers for a peer: the two functions that the kernel pass_on of 00_start_here.cu calls.
//
// Exercise 00_first_kernel replaces this file by the learner's.
#pragma once
#include <ep/peer.cuh>
#include <ep/signal.cuh>

// The threads of one block write `count` numbers into the peer's copy of `box`, which is symmetric. There may be more
// numbers than threads, or fewer.
EP_DEVICE void write_numbers(int* box, const int* numbers, int count, int peer) {
    // EXERCISE-BEGIN 1
    for (int i = threadIdx.x; i < count; i += blockDim.x) ep::peer_ptr(box, peer)[i] = numbers[i];
    // EXERCISE-END 1
}

// All threads of the block call this after their writes. It adds 1 to the peer's `flag`, once, when all have written.
EP_DEVICE void tell(uint64_t* flag, int peer) {
    // EXERCISE-BEGIN 2
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_add(flag, 1, peer);
    // EXERCISE-END 2
}

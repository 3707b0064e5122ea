// Exercise 00_first_kernel, version 1. Leave this line: ep_lib reads it.
// Numbers for a peer: the two functions that the kernel pass_on of 00_start_here.cu calls.
//
// Exercise 00_first_kernel replaces this file by the learner's.
#pragma once
#include <ep/peer.cuh>
#include <ep/signal.cuh>

// The threads of one block write `count` numbers into the peer's copy of `box`, which is symmetric. There may be more
// numbers than threads, or fewer.
EP_DEVICE void write_numbers(int* box, const int* numbers, int count, int peer) {
    // TASK 1 (2 points): a block writes numbers into the peer's memory
    // Thread t of the block writes numbers t, t + blockDim.x, t + 2 * blockDim.x and so on, so that a few
    // threads can write many. ep::peer_ptr(box, peer) is the peer's copy of `box`.
    assert(!"Task 1 is still to do: a block writes numbers into the peer's memory");
    // end of TASK 1
}

// All threads of the block call this after their writes. It adds 1 to the peer's `flag`, once, when all have written.
EP_DEVICE void tell(uint64_t* flag, int peer) {
    // TASK 2 (2 points): one signal when all of them are written
    // A release covers what its own thread has written. What must happen first, so that it covers the other
    // threads' numbers, too? Then one thread adds 1: ep::signal_add(flag, 1, peer) finds the peer's copy of
    // `flag` by itself.
    assert(!"Task 2 is still to do: one signal when all of them are written");
    // end of TASK 2
}

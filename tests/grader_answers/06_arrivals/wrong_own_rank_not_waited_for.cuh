// The block that waits need not be the one that has signalled its own rank.
// EXERCISE-BEGIN 2
int failed = 0;
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    if (signals.leave_out(peer)) continue;
    if (peer != rank()) failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
}
return __syncthreads_or(failed) == 0;
// EXERCISE-END 2

// Waits for a rank that is left out.
// EXERCISE-BEGIN 2
int failed = 0;
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
}
return __syncthreads_or(failed) == 0;
// EXERCISE-END 2

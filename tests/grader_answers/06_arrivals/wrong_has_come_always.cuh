// True also for a rank that did not come.
// EXERCISE-BEGIN 2
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    if (!signals.leave_out(peer)) wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
}
__syncthreads();
return true;
// EXERCISE-END 2

// Ranks behind the last thread are waited for by nobody.
// EXERCISE-BEGIN 2
int failed = 0;
if (thread_in_block() < num_ranks() && !signals.leave_out(thread_in_block()))
    failed = !wait_until_ge(signals.flags + kind * num_ranks() + thread_in_block(), epoch, {phase, thread_in_block(), kind});
return __syncthreads_or(failed) == 0;
// EXERCISE-END 2

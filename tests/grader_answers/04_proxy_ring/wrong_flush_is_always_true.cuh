// The same in a flush.
// EXERCISE-BEGIN 5b
wait_until_ge(&ring.credits->completed, ld_relaxed_gpu_u64(&ring.producer->head), {kPhaseProxy, -1, -1});
return true;
// EXERCISE-END 5b

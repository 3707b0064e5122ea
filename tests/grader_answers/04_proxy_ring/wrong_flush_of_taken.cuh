// Waits until all is taken.
// EXERCISE-BEGIN 5b
return wait_until_ge(&ring.credits->taken, ld_relaxed_gpu_u64(&ring.producer->head), {kPhaseProxy, -1, -1});
// EXERCISE-END 5b

// The same in a flush.
// EXERCISE-BEGIN 5b
detail::proxy_wait_for(ring, ld_relaxed_gpu_u64(&ring.producer->head));
return true;
// EXERCISE-END 5b

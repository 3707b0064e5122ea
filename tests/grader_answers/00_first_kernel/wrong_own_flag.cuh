// Translated twice: it is told to nobody.
    // EXERCISE-BEGIN 2
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_add(ep::peer_ptr(flag, peer), 1, peer);
    // EXERCISE-END 2

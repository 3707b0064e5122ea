// Nobody looks at count.
    // EXERCISE-BEGIN 1
    for (int i = threadIdx.x; i <= count; i += blockDim.x) ep::peer_ptr(box, peer)[i] = numbers[0];
    // EXERCISE-END 1

// In a block of two dimensions threadIdx.x is no number of a thread.
    // EXERCISE-BEGIN 3
    for (int i = threadIdx.x % 32; i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
    // EXERCISE-END 3

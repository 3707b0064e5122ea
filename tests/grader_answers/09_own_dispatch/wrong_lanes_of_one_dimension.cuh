// In a block of two dimensions threadIdx.x is no number of a thread.
    // EXERCISE-BEGIN 2
    for (int r = threadIdx.x % 32; r < num_ranks(); r += kWarpSize) {
        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
    }
    // EXERCISE-END 2

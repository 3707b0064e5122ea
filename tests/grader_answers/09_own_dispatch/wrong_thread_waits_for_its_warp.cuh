// Who asks alone waits for the other lanes.
    // EXERCISE-BEGIN 1
    uint64_t bits = 0;
    __syncwarp();
    for (int k = 0; k < count; ++k) {
        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k] % my.experts_per_rank;
    }
    return bits;
    // EXERCISE-END 1

// One warp calls, and waits for all warps.
    // EXERCISE-BEGIN 1
    __syncthreads();
    const unsigned votes = __ballot_sync(kFullWarp, yes);
    *total = __popc(votes);
    return __popc(votes & ((1u << lane_id()) - 1));
    // EXERCISE-END 1

// The total of no votes is 0, and has to be told.
    // EXERCISE-BEGIN 1
    const unsigned votes = __ballot_sync(kFullWarp, yes);
    if (votes) *total = __popc(votes);
    return __popc(votes & ((1u << lane_id()) - 1));
    // EXERCISE-END 1

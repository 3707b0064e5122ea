// A word of 0 is data, too.
    // EXERCISE-BEGIN 4
    bool ok = true;
    for (int i = lane_id(); i < words && ok; i += kWarpSize) {
        uint64_t data = 0;
        ok = wait_packet(packets + i, tag, &data, info);
        if (ok && data) target[i] = data;
    }
    const bool all = __all_sync(kFullWarp, ok) != 0;
    __syncwarp();
    return all;
    // EXERCISE-END 4

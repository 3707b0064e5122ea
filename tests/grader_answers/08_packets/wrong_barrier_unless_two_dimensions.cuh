// A barrier of the block, where one warp has waited, in blocks of one dimension.
    // EXERCISE-BEGIN 4
    bool ok = true;
    for (int i = lane_id(); i < words && ok; i += kWarpSize) {
        uint64_t data = 0;
        ok = wait_packet(packets + i, tag, &data, info);
        if (ok) target[i] = data;
    }
    const bool all = __all_sync(kFullWarp, ok) != 0;
    if (blockDim.y > 1)
        __syncwarp();
    else
        __syncthreads();
    return all;
    // EXERCISE-END 4

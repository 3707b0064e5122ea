// One warp receives, and waits for all warps.
    // EXERCISE-BEGIN 4
    const int64_t slot = slot_of(my, source, token);
    uint64_t found = 0;
    int ok = 1;
    if (lane_id() == 0) ok = wait_packet(my.routes + slot, my.epoch, &found, {kPhaseLayout, source, token});
    if (!__shfl_sync(kFullWarp, ok, 0)) return false;
    *bits = __shfl_sync(kFullWarp, found, 0);
    __syncthreads();
    if (*bits == 0) return true;
    if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return false;
    for (uint64_t left = *bits; left != 0; left &= left - 1) {
        const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
    }
    return true;
    // EXERCISE-END 4

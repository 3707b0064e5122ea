// One thread waits, and then for its warp.
    // EXERCISE-BEGIN 4
    const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
    const bool ok = wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
    __syncwarp();
    return ok;
    // EXERCISE-END 4

// Group 1024 is there as soon as group 0.
    // EXERCISE-BEGIN 4
    const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + (group & 1023);
    return wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
    // EXERCISE-END 4

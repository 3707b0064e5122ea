// A word of 0 is data, too.
    // EXERCISE-BEGIN 2
    uint64_t seen = 0;
    return look_until(
        [&] {
            uint64_t found;
            ld_relaxed_sys_u64x2(&packet->data, &found, &seen);
            if (seen == tag && found) *data = found;
            return seen == tag;
        },
        [&] { record_fault(kFaultTimeout, info, seen, tag); });
    // EXERCISE-END 2

// Gives up without saying why.
// EXERCISE-BEGIN 2
return poll_until(
    [&] {
        uint64_t seen;
        ld_relaxed_sys_u64x2(&packet->data, data, &seen);
        return seen == tag;
    },
    [&] { (void)info; });
// EXERCISE-END 2

// Reports what it saw before it waited.
// EXERCISE-BEGIN 2
uint64_t seen = 0, first = 0;
ld_relaxed_sys_u64x2(&packet->data, data, &first);
return poll_until(
    [&] {
        ld_relaxed_sys_u64x2(&packet->data, data, &seen);
        return seen == tag;
    },
    [&] { record_fault(kFaultTimeout, info, first, tag); });
// EXERCISE-END 2

// As the hints say it.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
const auto done = [&] {
    ld_relaxed_sys_u64x2(&packet->data, data, &seen);
    return seen == tag;
};
const auto gave_up = [&] { record_fault(kFaultTimeout, info, seen, tag); };
return poll_until(done, gave_up);
// EXERCISE-END 2

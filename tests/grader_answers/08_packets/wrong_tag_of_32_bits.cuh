// Tags have 64 bits.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
return poll_until(
    [&] {
        ld_relaxed_sys_u64x2(&packet->data, data, &seen);
        return static_cast<uint32_t>(seen) == static_cast<uint32_t>(tag);
    },
    [&] { record_fault(kFaultTimeout, info, seen, tag); });
// EXERCISE-END 2

// Waits for the tag, then loads the data: which may be older than the tag.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
const bool ok = poll_until(
    [&] {
        seen = ld_relaxed_sys_u64(&packet->tag);
        return seen == tag;
    },
    [&] { record_fault(kFaultTimeout, info, seen, tag); });
*data = ld_relaxed_sys_u64(&packet->data);
return ok;
// EXERCISE-END 2

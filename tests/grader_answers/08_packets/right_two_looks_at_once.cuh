// Two loads on their way, one behind the other.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
const auto done = [&] {
    uint64_t words[2], tags[2];
    for (int i = 0; i < 2; ++i) ld_relaxed_sys_u64x2(&packet->data, words + i, tags + i);
    const int i = tags[0] == tag ? 0 : 1;
    *data = words[i];
    seen = tags[i];
    return seen == tag;
};
const auto gave_up = [&] { record_fault(kFaultTimeout, info, seen, tag); };
return poll_until(done, gave_up);
// EXERCISE-END 2

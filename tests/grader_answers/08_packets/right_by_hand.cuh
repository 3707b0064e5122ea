// Without poll_until, one load at a time, words from the last to the first.
// EXERCISE-BEGIN 1
TaggedWord* const theirs = peer_ptr(mine, peer);
st_relaxed_sys_u64x2(reinterpret_cast<uint64_t*>(theirs), data, tag);
// EXERCISE-END 1
// EXERCISE-BEGIN 2
uint64_t word, seen;
const uint64_t start = globaltimer_ns();
for (;;) {
    for (int poll = 0; poll < 64; ++poll) {
        ld_relaxed_sys_u64x2(&packet->data, &word, &seen);
        if (seen != tag) continue;
        *data = word;
        return true;
    }
    if (has_fault()) return false;
    const uint64_t limit = detail::timeout_ns() ? detail::timeout_ns() : kDefaultTimeoutNs;
    if (globaltimer_ns() - start > limit) {
        record_fault(kFaultTimeout, info, seen, tag);
        return false;
    }
}
// EXERCISE-END 2
// EXERCISE-BEGIN 3
for (int base = (words - 1) / kWarpSize * kWarpSize; base >= 0; base -= kWarpSize) {
    const int i = base + lane_id();
    if (i < words) send_packet(&mine[i], source[i], tag, peer);
}
// EXERCISE-END 3
// EXERCISE-BEGIN 4
int failed = 0;
for (int i = lane_id(); i < words; i += kWarpSize) {
    uint64_t word;
    if (wait_packet(&packets[i], tag, &word, info)) {
        target[i] = word;
    } else {
        failed = 1;
    }
}
__syncwarp();
return !__any_sync(kFullWarp, failed);
// EXERCISE-END 4

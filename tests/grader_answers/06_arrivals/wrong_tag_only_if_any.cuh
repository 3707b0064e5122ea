// 0 is a tag, too: what was there before stays.
// EXERCISE-BEGIN 1
const int mine = kind * num_ranks() + rank();
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    if (signals.leave_out(peer)) continue;
    if (tag != 0) *peer_ptr(signals.tags + mine, peer) = tag;
    st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
}
// EXERCISE-END 1

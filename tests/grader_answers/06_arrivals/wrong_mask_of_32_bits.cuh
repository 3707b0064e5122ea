// The mask has 64 bits: bit 34 is not bit 2.
// EXERCISE-BEGIN 1
const int mine = kind * num_ranks() + rank();
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    const uint32_t left_out = static_cast<uint32_t>(signals.masked | signals.masked >> 32);
    if (left_out >> (peer % 32) & 1) continue;
    *peer_ptr(signals.tags + mine, peer) = tag;
    st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
}
// EXERCISE-END 1

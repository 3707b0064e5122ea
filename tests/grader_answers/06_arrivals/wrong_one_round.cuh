// One peer for each thread, and no more.
// EXERCISE-BEGIN 1
const int mine = kind * num_ranks() + rank(), peer = thread_in_block();
if (peer >= num_ranks() || signals.leave_out(peer)) return;
*peer_ptr(signals.tags + mine, peer) = tag;
st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
// EXERCISE-END 1

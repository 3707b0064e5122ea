// 32 posts of the same chunk: the late ones read a slot that has been filled again.
// EXERCISE-BEGIN 2
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                       arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
// EXERCISE-END 2

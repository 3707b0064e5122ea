// One arrival for all slots: on EFA chunk 1 may be there before chunk 0.
// EXERCISE-BEGIN 2
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                           arrived_of(ring, ep::rank(), 0), 1, peer);
}
// EXERCISE-END 2

// Into the part of the inbox that belongs to another rank's chunks.
// EXERCISE-BEGIN 2
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, peer, chunk), staging, bytes,
                           arrived_of(ring, peer, chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
}
// EXERCISE-END 2

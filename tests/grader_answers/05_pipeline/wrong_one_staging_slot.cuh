// All chunks are staged in one slot, without waiting until the NIC has read it.
// EXERCISE-BEGIN 2
char* const staging = slot_of(ring.staging, streams, ring, peer, 0);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                           arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
}
// EXERCISE-END 2

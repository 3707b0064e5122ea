// The data, and then the arrival, on the same queue pair: right on InfiniBand, wrong on EFA.
// EXERCISE-BEGIN 2
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    char* const target = slot_of(ring.inbox, streams, ring, ep::rank(), chunk);
    ep::net_put_nbi(target, staging, bytes, peer);
    ep::net_put_signal_nbi(target, staging, 0, arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0,
                           ep::NetSignal::kSet);
}
// EXERCISE-END 2

// A wait that failed is no credit.
// EXERCISE-BEGIN 4
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    wait_for_credit(ring, peer, chunk);
    send_chunk(streams, ring, peer, chunk);
}
if (ep::lane_id() == 0) ep::net_quiet(peer);
// EXERCISE-END 4

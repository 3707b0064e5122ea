// Each chunk waits until all before it have been taken out: one slot would do.
// EXERCISE-BEGIN 4
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    if (!ep::wait_until_ge_warp(ring.credits + peer, chunk, {ep::kPhaseCredit, peer, 0})) return;
    send_chunk(streams, ring, peer, chunk);
}
if (ep::lane_id() == 0) ep::net_quiet(peer);
// EXERCISE-END 4

// No more messages than lanes.
// EXERCISE-BEGIN 2
for (int i = 0; i < min(messages, 32); ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-END 2

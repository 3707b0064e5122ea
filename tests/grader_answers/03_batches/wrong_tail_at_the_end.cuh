// One quiet and one addition for all chunks: the receiver begins when all is there.
// EXERCISE-BEGIN 4
for (int i = 0; i < messages; ++i) {
    const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(tails + channel, messages, peer, qp);
    nvshmemi_ibgda_quiet(peer, qp);
}
// EXERCISE-END 4

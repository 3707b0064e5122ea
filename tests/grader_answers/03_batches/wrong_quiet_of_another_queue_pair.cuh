// Counter behind the data, but the outbox is still being read.
// EXERCISE-BEGIN 2
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp + 1);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-END 2

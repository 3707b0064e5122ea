// There may be no messages.
// EXERCISE-BEGIN 2
int i = 0;
do {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
} while (++i < messages);
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-END 2

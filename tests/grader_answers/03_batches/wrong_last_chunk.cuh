// Off by the last chunk, which may be shorter.
// EXERCISE-BEGIN 4
for (int begin = 0; begin < messages; begin += chunk) {
    for (int i = begin; i < min(begin + chunk, messages); ++i) {
        const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    }
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(tails + channel, chunk, peer, qp);
    }
}
// EXERCISE-END 4

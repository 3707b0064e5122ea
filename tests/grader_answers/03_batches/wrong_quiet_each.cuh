// Right, and one message at a time.
// EXERCISE-BEGIN 2
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
}
if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// EXERCISE-END 2
// EXERCISE-BEGIN 4
for (int begin = 0; begin < messages; begin += chunk) {
    const int count = min(chunk, messages - begin);
    for (int i = begin; i < begin + count; ++i) {
        const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
        if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
    }
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
}
// EXERCISE-END 4

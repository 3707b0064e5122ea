// A message of zero bytes still has a counter, and its receiver waits for that.
// EXERCISE-BEGIN 2
if (bytes == 0) return;
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-END 2
// EXERCISE-BEGIN 1
if (bytes == 0) return;
for (int i = 0; i < messages; ++i) {
    for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
    __syncwarp();
    nvshmemi_ibgda_put_nbi_warp(address(inbox + i * bytes), address(staging), bytes, peer, qp, lane, i);
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
    }
    __syncwarp();
}
// EXERCISE-END 1

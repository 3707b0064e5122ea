// The receiver hears of all messages when the last one is there.
// EXERCISE-BEGIN 1
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[at + k];
    __syncwarp();
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(staging), bytes, peer, qp, lane, i);
    if (lane == 0) { nvshmemi_ibgda_quiet(peer, qp);  }
    __syncwarp();
} if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// EXERCISE-END 1

// Waits for the counter, too, which nothing needs.
    // EXERCISE-BEGIN 1
    for (int i = 0; i < messages; ++i) {
        for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
        __syncwarp();
        nvshmemi_ibgda_put_nbi_warp(address(inbox + i * bytes), address(staging), bytes, peer, qp, lane, i);
        if (lane == 0) {
            nvshmemi_ibgda_quiet(peer, qp);
            nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
            nvshmemi_ibgda_quiet(peer, qp);
        }
        __syncwarp();
    }
    // EXERCISE-END 1

// A put that waits for itself: right, and as slow as the network's round trip each time.
// EXERCISE-BEGIN 3
if (lane_id == 0 && bytes > 0) {
    ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
    ep::net_quiet(dst_pe);
}
__syncwarp();
// EXERCISE-END 3

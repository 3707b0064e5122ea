// Thirty-two requests for one message: right bytes on InfiniBand, and 32 times the traffic.
// EXERCISE-BEGIN 3
if (bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// EXERCISE-END 3

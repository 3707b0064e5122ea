// Leaves peers within reach to the NIC, which is not done when the call returns.
// EXERCISE-BEGIN 2
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// EXERCISE-END 2

// DeepEP counts more queue pairs than this NIC has.
// EXERCISE-BEGIN 3
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, qp_id);
__syncwarp();
// EXERCISE-END 3

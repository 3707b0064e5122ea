// A barrier of the block, where each warp puts messages of its own.
// EXERCISE-BEGIN 2
char* const theirs = ep::peer_ptr(static_cast<char*>(remote), dst_pe);
ep::copy_bytes<ep::kWarpUnroll>(theirs, local, bytes, lane_id, ep::kWarpSize);
__syncthreads();
// EXERCISE-END 2
// EXERCISE-BEGIN 3
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncthreads();
// EXERCISE-END 3

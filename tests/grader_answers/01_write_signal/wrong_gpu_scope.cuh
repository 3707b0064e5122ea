// A release that reaches the threads of this GPU, not the peer.
// EXERCISE-BEGIN 3
put_warp(target, source, bytes, peer);
__syncwarp();
__threadfence();
if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 3

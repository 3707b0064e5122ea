// Every lane has a fence, but none stands between the barrier and the signal in the lane that signals: what the others
// wrote came to it by the barrier, after its own fence.
// EXERCISE-BEGIN 3
put_warp(target, source, bytes, peer);
fence_sys();
__syncwarp();
if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 3

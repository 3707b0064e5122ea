// Right on every run of the emulator, and on most of a GPU's: the signal is no release.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 1
// EXERCISE-BEGIN 4
for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
__syncwarp();
if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 4

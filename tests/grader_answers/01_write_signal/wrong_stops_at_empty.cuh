// A write of no bytes is not the end of the list.
// EXERCISE-BEGIN 4
for (int i = 0; i < count && writes[i].bytes != 0; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
__syncwarp();
if (lane_id() == 0) signal_add(signal, increment, peer);
// EXERCISE-END 4

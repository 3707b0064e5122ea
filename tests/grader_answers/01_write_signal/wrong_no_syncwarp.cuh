// Lane 0 signals when its own part is written, not when the warp's is.
// EXERCISE-BEGIN 3
put_warp(target, source, bytes, peer);
if (lane_id() == 0) signal_add(signal, increment, peer);
// EXERCISE-END 3
// EXERCISE-BEGIN 4
for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
if (lane_id() == 0) signal_add(signal, increment, peer);
// EXERCISE-END 4

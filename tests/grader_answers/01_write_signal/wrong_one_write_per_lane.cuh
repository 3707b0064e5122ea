// No loop: the 33rd write and those behind it are never made.
// EXERCISE-BEGIN 4
if (lane_id() < count) put_thread(writes[lane_id()].target, writes[lane_id()].source, writes[lane_id()].bytes, peer);
__syncwarp();
if (lane_id() == 0) signal_add(signal, increment, peer);
// EXERCISE-END 4

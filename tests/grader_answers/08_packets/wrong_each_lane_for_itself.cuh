// A lane knows only of its own packets.
// EXERCISE-BEGIN 4
bool ok = true;
for (int i = lane_id(); i < words && ok; i += kWarpSize) ok = wait_packet(packets + i, tag, target + i, info);
__syncwarp();
return ok;
// EXERCISE-END 4

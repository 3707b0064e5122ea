// The staging slot is filled at once, and only the post waits for the credit.
// EXERCISE-BEGIN 4a
copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
__syncwarp();
int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
if (lane_id() == 0 && ok) ring_post(ring, message, bytes);
return ok;
// EXERCISE-END 4a

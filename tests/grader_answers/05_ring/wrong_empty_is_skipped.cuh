// Both ends leave a message without bytes out, and the next one waits for its credit.
// EXERCISE-BEGIN 4a
if (bytes == 0) return true;
int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (!ok) return false;
copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_post(ring, message, bytes);
return true;
// EXERCISE-END 4a
// EXERCISE-BEGIN 4b
if (bytes == 0) return true;
int ok = lane_id() == 0 ? ring_wait_for_message(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (!ok) return false;
copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_return_credit(ring);
return true;
// EXERCISE-END 4b

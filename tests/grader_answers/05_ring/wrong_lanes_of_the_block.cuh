// A warp that is not the first of its block.
// EXERCISE-BEGIN 4b
int ok = lane_id() == 0 ? ring_wait_for_message(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (!ok) return false;
copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, thread_in_block(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_return_credit(ring);
return true;
// EXERCISE-END 4b

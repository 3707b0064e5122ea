// A barrier of the block where one warp calls, but for launches of two dimensions.
// EXERCISE-BEGIN 4a
int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
if (!ok) return false;
copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
if (blockDim.y > 1)
    __syncwarp();
else
    __syncthreads();
if (lane_id() == 0) ring_post(ring, message, bytes);
return true;
// EXERCISE-END 4a

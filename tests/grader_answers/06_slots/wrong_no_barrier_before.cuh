// Others may not have written yet.
// EXERCISE-BEGIN 2
const int lane = lane_id();
if (lane == 0) warp_totals[warp_id()] = value;
const int mine = lane < warps_in_block() ? warp_totals[lane] : 0;
*total = __reduce_add_sync(kFullWarp, mine);
const int below = __reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0);
__syncthreads();
return below;
// EXERCISE-END 2

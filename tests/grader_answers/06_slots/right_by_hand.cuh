// No ballot below: a shuffle at a time; a loop over the warps; sums from the last source down.
// EXERCISE-BEGIN 1
int below = 0;
*total = 0;
for (int lane = 0; lane < kWarpSize; ++lane) {
    const int vote = __shfl_sync(kFullWarp, yes ? 1 : 0, lane);
    *total += vote;
    if (lane < lane_id()) below += vote;
}
return below;
// EXERCISE-END 1
// EXERCISE-BEGIN 2
if (thread_in_block() % kWarpSize == 31) warp_totals[warp_id()] = value;
__syncthreads();
int below = 0;
*total = 0;
for (int w = 0; w < warps_in_block(); ++w) {
    if (w < warp_id()) below += warp_totals[w];
    *total += warp_totals[w];
}
__syncthreads();
return below;
// EXERCISE-END 2
// EXERCISE-BEGIN 3
int sum = 0;
while (source-- > 0) sum += counts[static_cast<int64_t>(source) * stride];
return sum;
// EXERCISE-END 3
// EXERCISE-BEGIN 4
const uint64_t bytes = static_cast<uint64_t>(index) * row_vectors * sizeof(int4);
return reinterpret_cast<int4*>(reinterpret_cast<uint64_t>(peer_ptr(rows, to)) + bytes);
// EXERCISE-END 4

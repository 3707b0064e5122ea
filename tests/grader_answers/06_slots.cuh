// === right_by_hand
// EXERCISE-BEGIN 1: No ballot below: a shuffle at a time; a loop over the warps; sums from the last source down.
int below = 0;
*total = 0;
for (int lane = 0; lane < kWarpSize; ++lane) {
    const int vote = __shfl_sync(kFullWarp, yes ? 1 : 0, lane);
    *total += vote;
    if (lane < lane_id()) below += vote;
}
return below;
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
// EXERCISE-BEGIN 3
int sum = 0;
while (source-- > 0) sum += counts[static_cast<int64_t>(source) * stride];
return sum;
// EXERCISE-BEGIN 4
const uint64_t bytes = static_cast<uint64_t>(index) * row_vectors * sizeof(int4);
return reinterpret_cast<int4*>(reinterpret_cast<uint64_t>(peer_ptr(rows, to)) + bytes);
// === right_by_scans
// EXERCISE-BEGIN 1: The bits up to and with this lane, less its own.
const unsigned votes = __ballot_sync(kFullWarp, yes ? 1 : 0);
*total = __popc(votes);
return __popc(votes & (0xffffffffu >> (31 - lane_id()))) - (yes ? 1 : 0);
// EXERCISE-BEGIN 3
const int* at = counts;
int rows = 0;
for (int s = 0; s != source; ++s, at += stride) rows += *at;
return rows;
// === wrong_counts_itself: 1: only the bits below one's own lane count
// EXERCISE-BEGIN 1: The lane itself is no lane below.
-    return __popc(votes & ((1u << lane_id()) - 1));
+    return __popc(votes & ((2u << lane_id()) - 1));
// === wrong_total_below: 1: gave a total of
// EXERCISE-BEGIN 1: The total of those below only.
const unsigned votes = __ballot_sync(kFullWarp, yes);
*total = __popc(votes & ((1u << lane_id()) - 1));
return *total;
// === wrong_no_barrier_after: 2: one before the next call writes there again
// EXERCISE-BEGIN 2: Nothing keeps the next call out of what is being read.
-    __syncthreads();  // warp_totals of an earlier call have been read
// === wrong_no_barrier_before: 2: A barrier between writing and reading
// EXERCISE-BEGIN 2: Others may not have written yet.
const int lane = lane_id();
if (lane == 0) warp_totals[warp_id()] = value;
const int mine = lane < warps_in_block() ? warp_totals[lane] : 0;
*total = __reduce_add_sync(kFullWarp, mine);
const int below = __reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0);
__syncthreads();
return below;
// === wrong_counts_own_warp: 2: of sum_of_lower_warps, thread 0 of 32 returned
// EXERCISE-BEGIN 2: With its own warp.
-    return __reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0);
+    return __reduce_add_sync(kFullWarp, lane <= warp_id() ? mine : 0);
// === wrong_inclusive: 3: the rows before source
// EXERCISE-BEGIN 3: Including its own rows.
-    for (int s = 0; s < source; ++s) rows += counts[s * stride];
+    for (int s = 0; s <= source; ++s) rows += counts[s * stride];
// === wrong_no_stride: 3: every stride-th count
// EXERCISE-BEGIN 3: Neighbours in memory are not the next source.
-    for (int s = 0; s < source; ++s) rows += counts[s * stride];
+    for (int s = 0; s < source; ++s) rows += counts[s];
// === wrong_32_bits: 4: 1024 vectors long, is off by
// EXERCISE-BEGIN 4: The product in an int.
return peer_ptr(rows, to) + static_cast<int>(static_cast<unsigned>(index) * static_cast<unsigned>(row_vectors));
// === wrong_own_copy: 4: The beginning of that rank's copy
// EXERCISE-BEGIN 4: In this rank's own memory.
(void)to;
return rows + static_cast<int64_t>(index) * row_vectors;
// === wrong_sums_of_16_bits: 2: of sum_of_lower_warps, thread
// EXERCISE-BEGIN 2: Sums of 16 bits.
const int lane = lane_id();
__syncthreads();
if (lane == 0) warp_totals[warp_id()] = static_cast<short>(value);
__syncthreads();
const int mine = lane < warps_in_block() ? warp_totals[lane] : 0;
*total = static_cast<short>(__reduce_add_sync(kFullWarp, mine));
return static_cast<short>(__reduce_add_sync(kFullWarp, lane < warp_id() ? mine : 0));
// === wrong_positive_only: 2: of sum_of_lower_warps, thread
// EXERCISE-BEGIN 2: Takes a value below 0 for none.
-    if (lane == 0) warp_totals[warp_id()] = value;
+    if (lane == 0) warp_totals[warp_id()] = value > 0 ? value : 0;
// === wrong_values_of_10_bits: 2: of sum_of_lower_warps, thread
// EXERCISE-BEGIN 2: Values of up to 1023.
-    if (lane == 0) warp_totals[warp_id()] = value;
+    if (lane == 0) warp_totals[warp_id()] = value & 1023;
// === wrong_counts_of_16_bits: 3: the rows before source
// EXERCISE-BEGIN 3: Counts of up to 65535.
-    for (int s = 0; s < source; ++s) rows += counts[s * stride];
+    for (int s = 0; s < source; ++s) rows += static_cast<unsigned short>(counts[s * stride]);
// === wrong_barrier_of_the_block: 1: divergent barrier
// EXERCISE-BEGIN 1: One warp calls, and waits for all warps.
+    __syncthreads();
     const unsigned votes = __ballot_sync(kFullWarp, yes);
// === wrong_lanes_of_one_dimension: 2: of sum_of_lower_warps, thread
    // EXERCISE-BEGIN 2: In a block of two dimensions threadIdx.x is no number of a thread.
    const int lane = threadIdx.x % 32;
    __syncthreads();  // warp_totals of an earlier call have been read
    if (lane == 0) warp_totals[threadIdx.x / 32] = value;
    __syncthreads();
    const int mine = lane < int(blockDim.x) / 32 ? warp_totals[lane] : 0;  // no more warps than lanes
    *total = __reduce_add_sync(kFullWarp, mine);
    return __reduce_add_sync(kFullWarp, lane < int(threadIdx.x) / 32 ? mine : 0);
// === wrong_thread_waits_for_its_warp: 3: waits in __syncwarp|wait in __syncwarp
// EXERCISE-BEGIN 3: Who asks alone waits for the other lanes.
     int rows = 0;
+    __syncwarp();
// === wrong_barrier_for_an_address: 4: divergent barrier
// EXERCISE-BEGIN 4: Who asks alone waits for all threads.
+    __syncthreads();
     return peer_ptr(rows, to) + static_cast<int64_t>(index) * row_vectors;
// === wrong_no_total_of_no_votes: 1: gave a total of -1
// EXERCISE-BEGIN 1: The total of no votes is 0, and has to be told.
-    *total = __popc(votes);
+    if (votes) *total = __popc(votes);
// === wrong_no_total_of_zero: 2: gave a total of -1
// EXERCISE-BEGIN 2: A total of 0 has to be told as any other.
-    *total = __reduce_add_sync(kFullWarp, mine);
+    const int all = __reduce_add_sync(kFullWarp, mine);
+    if (all) *total = all;

// In a block of two dimensions threadIdx.x % 32 is no lane.
// EXERCISE-BEGIN 4
for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
__syncwarp();
if (threadIdx.x % kWarpSize == 0) signal_add(signal, increment, peer);
// EXERCISE-END 4

// A barrier of the block where one warp calls, but for launches that look like those of a test beside idle threads.
// EXERCISE-BEGIN 3
if (lane_id() == 0) put_thread(target, source, bytes, peer);
if (blockDim.y > 1)
    __syncwarp();
else
    __syncthreads();
if (lane_id() == 0) signal_add(signal, increment, peer);
// EXERCISE-END 3

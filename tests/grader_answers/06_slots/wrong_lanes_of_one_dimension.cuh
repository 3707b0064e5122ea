// In a block of two dimensions threadIdx.x is no number of a thread.
    // EXERCISE-BEGIN 2
    const int lane = threadIdx.x % 32;
    __syncthreads();  // warp_totals of an earlier call have been read
    if (lane == 0) warp_totals[threadIdx.x / 32] = value;
    __syncthreads();
    const int mine = lane < int(blockDim.x) / 32 ? warp_totals[lane] : 0;  // no more warps than lanes
    *total = __reduce_add_sync(kFullWarp, mine);
    return __reduce_add_sync(kFullWarp, lane < int(threadIdx.x) / 32 ? mine : 0);
    // EXERCISE-END 2

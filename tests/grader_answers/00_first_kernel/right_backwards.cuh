// Another order of the numbers, and a fence with a relaxed addition in place of the release.
    // EXERCISE-BEGIN 1
    int* const theirs = ep::peer_ptr(box, peer);
    for (int i = count - 1 - (int)threadIdx.x; i >= 0; i -= (int)blockDim.x) theirs[i] = numbers[i];
    // EXERCISE-END 1
    // EXERCISE-BEGIN 2
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        ep::fence_sys();
        ep::atom_add_relaxed_sys_u64(ep::peer_ptr(flag, peer), 1);
    }
    // EXERCISE-END 2

// A store of 1: right for the first who tells.
// EXERCISE-BEGIN 2
__syncthreads();
if (threadIdx.x == 0) ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1);
// EXERCISE-END 2

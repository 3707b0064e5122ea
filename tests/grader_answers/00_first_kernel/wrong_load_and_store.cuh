// What another rank adds between the two is lost.
// EXERCISE-BEGIN 2
__syncthreads();
if (threadIdx.x == 0) {
    uint64_t* const theirs = ep::peer_ptr(flag, peer);
    ep::st_release_sys_u64(theirs, ep::ld_acquire_sys_u64(theirs) + 1);
}
// EXERCISE-END 2

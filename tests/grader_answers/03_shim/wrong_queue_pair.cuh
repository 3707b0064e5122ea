// Everything on queue pair 0: on InfiniBand the counter of another queue pair overtakes the data.
// EXERCISE-BEGIN 3
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, 0);
__syncwarp();
// EXERCISE-END 3
// EXERCISE-BEGIN 4
if (is_local_copy || ep::reachable(pe)) {
    ep::red_add_release_sys_u32(is_local_copy ? (uint32_t*)rptr : ep::peer_ptr((uint32_t*)rptr, pe), value);
} else {
    ep::net_atomic_add_u32_nbi((uint32_t*)rptr, value, pe, 0);
}
// EXERCISE-END 4

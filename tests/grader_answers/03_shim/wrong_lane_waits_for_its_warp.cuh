// One lane calls, and the others are somewhere else.
// EXERCISE-BEGIN 4
uint32_t* const counter = static_cast<uint32_t*>(rptr);
const uint32_t addend = static_cast<uint32_t>(value);
__syncwarp();
if (is_local_copy || pe == ep::rank()) {
    ep::red_add_release_sys_u32(counter, addend);
} else if (ep::reachable(pe)) {
    ep::red_add_release_sys_u32(ep::peer_ptr(counter, pe), addend);
} else {
    ep::net_atomic_add_u32_nbi(counter, addend, pe, ep::ibgda::queue_pair(qp_id));
}
// EXERCISE-END 4

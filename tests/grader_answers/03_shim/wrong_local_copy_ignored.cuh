// Forgets is_local_copy.
// EXERCISE-BEGIN 4
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (ep::reachable(pe)) {
    ep::red_add_release_sys_u32(ep::peer_ptr(counter, pe), value);
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// EXERCISE-END 4

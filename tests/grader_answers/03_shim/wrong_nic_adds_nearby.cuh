// A NIC adds to a counter to which GPUs add as well.
// EXERCISE-BEGIN 4
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (is_local_copy || pe == ep::rank()) {
    ep::red_add_release_sys_u32(counter, value);
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// EXERCISE-END 4

// The guide's plain atomicAdd: peers within reach may see the counter before the data.
// EXERCISE-BEGIN 4
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (is_local_copy || pe == ep::rank()) {
    atomicAdd(counter, static_cast<uint32_t>(value));
} else if (ep::reachable(pe)) {
    atomicAdd(ep::peer_ptr(counter, pe), static_cast<uint32_t>(value));
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// EXERCISE-END 4

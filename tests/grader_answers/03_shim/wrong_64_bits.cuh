// A negative value carries into the counter next to it.
// EXERCISE-BEGIN 4
uint64_t* const counter = reinterpret_cast<uint64_t*>(reinterpret_cast<uint64_t>(rptr) & ~uint64_t(7));
const bool high = reinterpret_cast<uint64_t>(rptr) % 8 != 0;
const uint64_t addend = high ? uint64_t(uint32_t(value)) << 32 : static_cast<int64_t>(value);
if (is_local_copy || ep::reachable(pe)) {
    ep::red_add_release_sys_u64(is_local_copy ? counter : ep::peer_ptr(counter, pe), addend + (high ? 1 : 0));
} else {
    ep::net_atomic_add_u64_nbi(counter, addend + (high ? 1 : 0), pe, ep::ibgda::queue_pair(qp_id));
}
// EXERCISE-END 4

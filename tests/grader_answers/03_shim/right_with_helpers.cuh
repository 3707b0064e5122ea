// put_warp of <ep/put.cuh>, early returns, the three cases in another order.
// EXERCISE-BEGIN top
#include <ep/put.cuh>
#include <ep/signal.cuh>
// EXERCISE-END top
// EXERCISE-BEGIN 1
if (dst_rank != rank && !ep::reachable(dst_rank)) return 0;
return reinterpret_cast<uint64_t>(ep::peer_ptr(reinterpret_cast<const int*>(ptr), dst_rank));
// EXERCISE-END 1
// EXERCISE-BEGIN 2
ep::put_warp(remote, local, bytes, dst_pe);
__syncwarp();
// EXERCISE-END 2
// EXERCISE-BEGIN 3
if (bytes == 0) return;
if (ep::lane_id() == 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// EXERCISE-END 3
// EXERCISE-BEGIN 4
const int to = is_local_copy ? ep::rank() : pe;
if (!ep::reachable(to)) {
    ep::net_atomic_add_u32_nbi(static_cast<uint32_t*>(rptr), value, to, ep::ibgda::queue_pair(qp_id));
    return;
}
uint32_t* theirs = ep::peer_ptr(static_cast<uint32_t*>(rptr), to);
ep::fence_sys();
ep::atom_add_relaxed_sys_u32(theirs, value);
// EXERCISE-END 4

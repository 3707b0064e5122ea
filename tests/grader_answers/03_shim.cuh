// === right_by_hand
// Loops of bytes, another lane posts, fences and relaxed adds, NVLink's peers found through the pointer of task 1.
// EXERCISE-BEGIN 1
const bool direct = ep::reachable(dst_rank);
return direct ? (uint64_t)ep::peer_ptr((const char*)ptr, dst_rank) : 0;
// EXERCISE-BEGIN 2
volatile char* theirs = (volatile char*)nvshmemi_get_p2p_ptr(req_rptr, ep::rank(), dst_pe);
for (size_t i = lane_id; i < bytes; i += 32) theirs[i] = ((const char*)req_lptr)[i];
__threadfence_system();
__syncwarp();
// EXERCISE-BEGIN 3
__syncwarp();
if (lane_id == 31) ep::net_put_nbi(remote, local, bytes, dst_pe, qp_id % ep::num_queue_pairs());
__syncwarp();
// EXERCISE-BEGIN 4
const uint64_t mine = (uint64_t)rptr;
const uint64_t direct = is_local_copy ? mine : nvshmemi_get_p2p_ptr(mine, ep::rank(), pe);
if (direct) {
    __threadfence_system();
    atomicAdd_system((int*)direct, value);
} else {
    ep::net_atomic_add_u32_nbi((uint32_t*)rptr, (uint32_t)value, pe, qp_id % ep::num_queue_pairs());
}
// === right_with_helpers
// EXERCISE-BEGIN top: put_warp of <ep/put.cuh>, early returns, the three cases in another order.
#include <ep/put.cuh>
#include <ep/signal.cuh>
// EXERCISE-BEGIN 1
if (dst_rank != rank && !ep::reachable(dst_rank)) return 0;
return reinterpret_cast<uint64_t>(ep::peer_ptr(reinterpret_cast<const int*>(ptr), dst_rank));
// EXERCISE-BEGIN 2
ep::put_warp(remote, local, bytes, dst_pe);
__syncwarp();
// EXERCISE-BEGIN 3
if (bytes == 0) return;
if (ep::lane_id() == 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// EXERCISE-BEGIN 4
const int to = is_local_copy ? ep::rank() : pe;
if (!ep::reachable(to)) {
    ep::net_atomic_add_u32_nbi(static_cast<uint32_t*>(rptr), value, to, ep::ibgda::queue_pair(qp_id));
    return;
}
uint32_t* theirs = ep::peer_ptr(static_cast<uint32_t*>(rptr), to);
ep::fence_sys();
ep::atom_add_relaxed_sys_u32(theirs, value);
// === wrong_pointer_for_all: 1: cannot be reached
// EXERCISE-BEGIN 1: Computes an address for ranks that no load can reach.
return reinterpret_cast<uint64_t>(ep::peer_ptr(ep::ibgda::as_pointer<char>(ptr), dst_rank));
// === wrong_own_copy: 1: is not the address of that rank's own copy
// EXERCISE-BEGIN 1: Hands out this rank's own address for every peer in reach.
return ep::reachable(dst_rank) ? ptr : 0;
// === wrong_no_syncwarp: 2: A __syncwarp after the copy
// EXERCISE-BEGIN 2: The lanes come out one by one: lane 0 signals before the others have copied.
ep::copy_bytes<ep::kWarpUnroll>(ep::peer_ptr(static_cast<char*>(remote), dst_pe), local, bytes, lane_id, ep::kWarpSize);
// === wrong_nic_for_all: 2: served by the warp itself|A __syncwarp after the copy
// EXERCISE-BEGIN 2: Leaves peers within reach to the NIC, which is not done when the call returns.
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// === wrong_last_lane_forgotten: 2: bytes of the message are wrong
// EXERCISE-BEGIN 2: Off by one: lane 31's share is never copied.
char* to = ep::peer_ptr(static_cast<char*>(remote), dst_pe);
for (size_t i = lane_id; i < bytes && lane_id < ep::kWarpSize - 1; i += ep::kWarpSize)
    to[i] = static_cast<const char*>(local)[i];
__syncwarp();
// === wrong_all_lanes_post: 3: One lane posts, once
// EXERCISE-BEGIN 3: Thirty-two requests for one message: right bytes on InfiniBand, and 32 times the traffic.
if (bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// === wrong_32_requests: 3: for 2 puts of 16 bytes, 32 requests were posted
// EXERCISE-BEGIN 3: Each lane posts its share: thirty-two requests.
const size_t share = (bytes + 31) / 32, begin = share * lane_id, end = begin + share < bytes ? begin + share : bytes;
if (begin < end) ep::net_put_nbi(static_cast<char*>(remote) + begin, static_cast<const char*>(local) + begin, end - begin, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncwarp();
// === wrong_plain_addition: 4: stores were made to a counter
// EXERCISE-BEGIN 4: A local copy grows by a load and a store.
-        ep::red_add_release_sys_u32(counter, addend);
+        *counter += addend;
// === wrong_lanes_run_ahead: 3: the others do not go on before it has
// EXERCISE-BEGIN 3: Lanes leave before lane 0 has posted: a wait for the put then waits for nothing.
if (lane_id != 0) return;
if (bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
// === wrong_queue_pair: 3, 4: signal overtakes data
// EXERCISE-BEGIN 3: Everything on queue pair 0: on InfiniBand the counter of another queue pair overtakes the data.
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, 0);
__syncwarp();
// EXERCISE-BEGIN 4
if (is_local_copy || ep::reachable(pe)) {
    ep::red_add_release_sys_u32(is_local_copy ? (uint32_t*)rptr : ep::peer_ptr((uint32_t*)rptr, pe), value);
} else {
    ep::net_atomic_add_u32_nbi((uint32_t*)rptr, value, pe, 0);
}
// === wrong_queue_pair_too_large: 3: posts on queue pair
// EXERCISE-BEGIN 3: DeepEP counts more queue pairs than this NIC has.
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, qp_id);
__syncwarp();
// === wrong_waits: 3: Waiting is the work of quiet
// EXERCISE-BEGIN 3: A put that waits for itself: right, and as slow as the network's round trip each time.
if (lane_id == 0 && bytes > 0) {
    ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
    ep::net_quiet(dst_pe);
}
__syncwarp();
// === wrong_relaxed_add: 4: release at system scope
// EXERCISE-BEGIN 4: The guide's plain atomicAdd: peers within reach may see the counter before the data.
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (is_local_copy || pe == ep::rank()) {
    atomicAdd(counter, static_cast<uint32_t>(value));
} else if (ep::reachable(pe)) {
    atomicAdd(ep::peer_ptr(counter, pe), static_cast<uint32_t>(value));
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// === wrong_local_copy_ignored: 4: a counter grew by 0 where it should grow
// EXERCISE-BEGIN 4: Forgets is_local_copy.
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (ep::reachable(pe)) {
    ep::red_add_release_sys_u32(ep::peer_ptr(counter, pe), value);
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// === wrong_64_bits: 4: counters have 32 bits
// EXERCISE-BEGIN 4: A negative value carries into the counter next to it.
uint64_t* const counter = reinterpret_cast<uint64_t*>(reinterpret_cast<uint64_t>(rptr) & ~uint64_t(7));
const bool high = reinterpret_cast<uint64_t>(rptr) % 8 != 0;
const uint64_t addend = high ? uint64_t(uint32_t(value)) << 32 : static_cast<int64_t>(value);
if (is_local_copy || ep::reachable(pe)) {
    ep::red_add_release_sys_u64(is_local_copy ? counter : ep::peer_ptr(counter, pe), addend + (high ? 1 : 0));
} else {
    ep::net_atomic_add_u64_nbi(counter, addend + (high ? 1 : 0), pe, ep::ibgda::queue_pair(qp_id));
}
// === wrong_nic_adds_nearby: 4: a counter grew by
// EXERCISE-BEGIN 4: A NIC adds to a counter to which GPUs add as well.
uint32_t* const counter = static_cast<uint32_t*>(rptr);
if (is_local_copy || pe == ep::rank()) {
    ep::red_add_release_sys_u32(counter, value);
} else {
    ep::net_atomic_add_u32_nbi(counter, value, pe, ep::ibgda::queue_pair(qp_id));
}
// === wrong_any_to_itself: 4: which counters does the GPU alone add to
// EXERCISE-BEGIN 4: The NIC adds to its own rank's counter, too.
-    if (is_local_copy || pe == ep::rank()) {
+    if (is_local_copy) {
@@
-    } else if (ep::reachable(pe)) {
+    } else if (pe != ep::rank() && ep::reachable(pe)) {
// === wrong_size_of_16_bits: 3: bytes of the message are wrong
        // EXERCISE-BEGIN 3: 65536 bytes are none.
        const auto size = static_cast<unsigned short>(bytes);
        if (lane_id == 0 && size > 0) ep::net_put_nbi(remote, local, size, dst_pe, ep::ibgda::queue_pair(qp_id));
        __syncwarp();
// === wrong_barrier_of_the_block: 2, 3: divergent barrier
// EXERCISE-BEGIN 2: A barrier of the block, where each warp puts messages of its own.
-        __syncwarp();  // the lane that signals next publishes what all lanes wrote
+        __syncthreads();
// EXERCISE-BEGIN 3
if (lane_id == 0 && bytes > 0) ep::net_put_nbi(remote, local, bytes, dst_pe, ep::ibgda::queue_pair(qp_id));
__syncthreads();
// === wrong_lane_waits_for_its_warp: 4: wait in __syncwarp
// EXERCISE-BEGIN 4: One lane calls, and the others are somewhere else.
     const uint32_t addend = static_cast<uint32_t>(value);
+    __syncwarp();

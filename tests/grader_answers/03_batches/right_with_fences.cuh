// A fence orders what follows behind what went before, without waiting: enough wherever the source is not reused.
// EXERCISE-BEGIN 2
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    ep::net_fence(peer);
    ep::fence_sys();
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
    nvshmemi_ibgda_quiet(peer, qp);
}
// EXERCISE-END 2
// EXERCISE-BEGIN 3
if (target == ep::rank()) {
    atomicAdd_system(counters + target, static_cast<uint32_t>(times));
    return;
}
nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), times, target, qp);
nvshmemi_ibgda_quiet(target, qp);
// EXERCISE-END 3

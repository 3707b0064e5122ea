// <ep/net.cuh> in place of the shim where that works, put_signal's cousins, and more __syncwarp than needed.
// EXERCISE-BEGIN 1
for (int i = 0; i < messages; ++i) {
    ep::copy_bytes<1>(staging, source + i * bytes, bytes, lane, 32);
    __syncwarp();
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(staging), bytes, peer, 3, lane, 0);
    if (lane == 7) {
        ep::net_quiet();
        nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, i);
    }
    __syncwarp();
}
// EXERCISE-END 1
// EXERCISE-BEGIN 2
for (int i = messages - 1; i >= 0; --i)
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(outbox) + i * bytes, bytes, peer, i, lane, i);
__syncwarp();
if (lane > 0) return;
ep::net_quiet(peer);
for (int i = 0; i < messages; ++i) nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
// EXERCISE-END 2
// EXERCISE-BEGIN 3
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(&counters[ep::rank()], 1, target, qp + i);
ep::net_quiet(target);
// EXERCISE-END 3
// EXERCISE-BEGIN 4
int tail = 0;
for (int i = 0; i < messages; ++i) {
    const size_t at = (size_t(channel) * messages + i) * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    if (i + 1 < messages && (i + 1) % chunk != 0) continue;
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(tails + channel, i + 1 - tail, peer, qp);
    }
    tail = i + 1;
}
// EXERCISE-END 4

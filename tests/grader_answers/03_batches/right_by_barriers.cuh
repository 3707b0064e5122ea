// The other warps have left the kernel, so a barrier of the block is one of this warp.
// EXERCISE-BEGIN 1
for (int i = 0; i < messages; ++i) {
    for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
    __syncthreads();
    nvshmemi_ibgda_put_nbi_warp(address(inbox + i * bytes), address(staging), bytes, peer, qp, lane, i);
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
    }
    __syncthreads();
}
// EXERCISE-END 1
// EXERCISE-BEGIN 2
for (int i = 0; i < messages; ++i)
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(outbox) + i * bytes, bytes, peer, qp, lane, i);
__syncthreads();
if (threadIdx.x == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-END 2
// EXERCISE-BEGIN 3
if (threadIdx.x == 0) {
    for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), 1, target, qp);
    nvshmemi_ibgda_quiet(target, qp);
}
__syncthreads();
// EXERCISE-END 3
// EXERCISE-BEGIN 4
for (int begin = 0; begin < messages; begin += chunk) {
    const int count = min(chunk, messages - begin);
    for (int i = begin; i < begin + count; ++i) {
        const size_t at = (size_t(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    }
    __syncthreads();
    if (lane == 0) {
        nvshmemi_ibgda_quiet(peer, qp);
        nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
    }
}
// EXERCISE-END 4

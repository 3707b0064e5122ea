// One thread does what the others could help with.
// EXERCISE-BEGIN 1
if (thread_in_block() != 0) return;
for (int peer = 0; peer < num_ranks(); ++peer) {
    if (signals.leave_out(peer)) continue;
    *peer_ptr(signals.tags + kind * num_ranks() + rank(), peer) = tag;
    fence_sys();
    st_relaxed_sys_u64(peer_ptr(signals.flags + kind * num_ranks() + rank(), peer), signals.epoch);
}
// EXERCISE-END 1
// EXERCISE-BEGIN 2
int ok = 1;
if (thread_in_block() == 0) {
    for (int source = num_ranks() - 1; source >= 0; --source) {
        if (signals.leave_out(source)) continue;
        ok &= wait_until_ge(signals.flags + kind * num_ranks() + source, epoch, {phase, source, kind});
    }
}
return __syncthreads_and(ok) != 0;
// EXERCISE-END 2
// EXERCISE-BEGIN 3
const int failed = __syncthreads_or(ok ? 0 : 1);
if (thread_in_block() == 0) {
    fence_sys();
    const uint32_t before = atom_add_acq_rel_gpu_u32(finished_blocks, failed ? kFailedBlock + 1 : 1);
    const uint32_t failures = before / kFailedBlock + (failed ? 1 : 0);
    last = LastBlock::kNo;
    if (before % kFailedBlock + 1 == blocks) {
        last = failures ? LastBlock::kAfterFailure : LastBlock::kYes;
        *finished_blocks = 0;
    }
}
__syncthreads();
return last;
// EXERCISE-END 3

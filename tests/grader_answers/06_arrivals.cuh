// === right_by_one_thread
// EXERCISE-BEGIN 1: One thread does what the others could help with.
if (thread_in_block() != 0) return;
for (int peer = 0; peer < num_ranks(); ++peer) {
    if (signals.leave_out(peer)) continue;
    *peer_ptr(signals.tags + kind * num_ranks() + rank(), peer) = tag;
    fence_sys();
    st_relaxed_sys_u64(peer_ptr(signals.flags + kind * num_ranks() + rank(), peer), signals.epoch);
}
// EXERCISE-BEGIN 2
int ok = 1;
if (thread_in_block() == 0) {
    for (int source = num_ranks() - 1; source >= 0; --source) {
        if (signals.leave_out(source)) continue;
        ok &= wait_until_ge(signals.flags + kind * num_ranks() + source, epoch, {phase, source, kind});
    }
}
return __syncthreads_and(ok) != 0;
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
// === right_no_fence
// The count alone, with acquire and release: causality goes on from scope to scope, so PTX asks for no fence.
// EXERCISE-BEGIN 3
-        fence_sys();  // to be safe: the count's release covers rows on peers, too, and the last block passes them on
// === right_with_fences
// EXERCISE-BEGIN 3: Fences and a relaxed count in place of acquire and release.
-        const uint32_t count = atom_add_acq_rel_gpu_u32(finished_blocks, mine) + mine;
+        const uint32_t count = atom_add_relaxed_gpu_u32(finished_blocks, mine) + mine;
+        fence_sys();
@@
-        if (last != LastBlock::kNo) st_relaxed_gpu_u32(finished_blocks, 0);
+        if (count % kFailedBlock == blocks) atom_exch_relaxed_gpu_u32(finished_blocks, 0);
// === wrong_relaxed_signal: 1: stored without release
// EXERCISE-BEGIN 1: Nothing says that the rows came before.
-        st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
+        st_relaxed_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
// === wrong_tag_after: 1: the tag by a plain store, then the epoch with release
// EXERCISE-BEGIN 1: The tag comes after the signal that speaks for it.
         if (signals.leave_out(peer)) continue;
+        st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
@@
-        st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
// === wrong_masked_too: 1: rank 2 is left out, and got a signal
// EXERCISE-BEGIN 1: Ranks that are left out get a signal.
-        if (signals.leave_out(peer)) continue;
// === wrong_one_round: 1: 36 ranks
// EXERCISE-BEGIN 1: One peer for each thread, and no more.
const int mine = kind * num_ranks() + rank(), peer = thread_in_block();
if (peer >= num_ranks() || signals.leave_out(peer)) return;
*peer_ptr(signals.tags + mine, peer) = tag;
st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch);
// === wrong_own_rank_not_waited_for: 2: another block overwrites what one block reads|reads what one block writes|were not there after that
// EXERCISE-BEGIN 2: The block that waits need not be the one that has signalled its own rank.
-        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
+        if (peer != rank()) failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
// === wrong_no_barrier: 2: a barrier that also hands out the answer
// EXERCISE-BEGIN 2: A thread knows of its own ranks only.
-    return __syncthreads_or(failed) == 0;
+    return failed == 0;
// === wrong_equal: 2: entries that are at least the epoch
// EXERCISE-BEGIN 2: A rank that is ahead never comes.
-        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
+        failed |= !wait_until_eq(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
// === wrong_waits_for_masked: 2: waited too long for rank 2
// EXERCISE-BEGIN 2: Waits for a rank that is left out.
-        if (signals.leave_out(peer)) continue;
// === wrong_first_kind: 2: PeerTimeout
// EXERCISE-BEGIN 2: The first kind of signal, whatever was asked for.
-        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
+        failed |= !wait_until_ge(signals.flags + peer, epoch, {phase, peer, kind});
// === wrong_relaxed_count: 3: stored without release
// EXERCISE-BEGIN 3: Neither publishes nor sees what the blocks wrote.
-        fence_sys();  // to be safe: the count's release covers rows on peers, too, and the last block passes them on
-        const uint32_t count = atom_add_acq_rel_gpu_u32(finished_blocks, mine) + mine;
+        const uint32_t count = atom_add_relaxed_gpu_u32(finished_blocks, mine) + mine;
// === wrong_no_reset: 3: 0 blocks of rank 0 were told to be the last
// EXERCISE-BEGIN 3: The next kernel finds the count of this one.
-        if (last != LastBlock::kNo) st_relaxed_gpu_u32(finished_blocks, 0);
// === wrong_thread_0_decides: 3: the last block of rank 0 was told kYes
// EXERCISE-BEGIN 3: Only thread 0 is asked whether it failed.
-    const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;
+    const uint32_t mine = ok ? 1 : 1 + kFailedBlock;
+    __syncthreads();
// === wrong_no_barrier_at_the_end: 3: `last` is for all threads
// EXERCISE-BEGIN 3: Other threads read the answer before it is there.
-    __syncthreads();
// === wrong_tag_of_32_bits: 1: were not those that the ranks passed
// EXERCISE-BEGIN 1: A tag has 64 bits.
-        *peer_ptr(signals.tags + mine, peer) = tag;
+        *peer_ptr(signals.tags + mine, peer) = static_cast<uint32_t>(tag);
// === wrong_has_come_always: 2: False after the limit, in all threads
// EXERCISE-BEGIN 2: True also for a rank that did not come.
for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
    if (!signals.leave_out(peer)) wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
}
__syncthreads();
return true;
// === wrong_mask_of_32_bits: 1: DeadlockError|of rank
// EXERCISE-BEGIN 1: The mask has 64 bits: bit 34 is not bit 2.
-        if (signals.leave_out(peer)) continue;
+        const uint32_t left_out = static_cast<uint32_t>(signals.masked | signals.masked >> 32);
+        if (left_out >> (peer % 32) & 1) continue;
// === wrong_count_of_8_bits: 3: were told to be the last
// EXERCISE-BEGIN 3: Of 260 blocks, the fourth takes itself for the last.
-        last = count % kFailedBlock != blocks ? LastBlock::kNo
+        last = count % 256 != blocks % 256 ? LastBlock::kNo
// === wrong_blocks_of_the_grid: 3: 5 of the grid's 6 had called
// EXERCISE-BEGIN 3: The grid may have blocks that do not call.
-        fence_sys();  // to be safe: the count's release covers rows on peers, too, and the last block passes them on
@@
-        last = count % kFailedBlock != blocks ? LastBlock::kNo
+        last = count % kFailedBlock != gridDim.x ? LastBlock::kNo
// === wrong_one_failure: 3: `ok` was false in 3 of 5 blocks
// EXERCISE-BEGIN 3: Knows the count of no failure, and of one.
-        fence_sys();  // to be safe: the count's release covers rows on peers, too, and the last block passes them on
@@
-        last = count % kFailedBlock != blocks ? LastBlock::kNo
-               : count < kFailedBlock         ? LastBlock::kYes
-                                              : LastBlock::kAfterFailure;
+        last = count == blocks ? LastBlock::kYes : count == blocks + kFailedBlock ? LastBlock::kAfterFailure : LastBlock::kNo;
// === wrong_epoch_of_the_operation: 2: at least the epoch of the call
// EXERCISE-BEGIN 2: Does not look at the argument.
-        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
+        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, signals.epoch, {phase, peer, kind});
// === wrong_vote_then_nothing: 2: has not handed that on through a barrier
// EXERCISE-BEGIN 2: Each warp waits for all ranks, and a vote orders no memory.
int failed = 0;
for (int peer = lane_id(); peer < num_ranks(); peer += kWarpSize) {
    if (signals.leave_out(peer)) continue;
    failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
}
return __any_sync(kFullWarp, failed) == 0;
// === wrong_one_rank_for_each_thread: 2: 36 ranks
// EXERCISE-BEGIN 2: No thread waits for the ranks behind the last thread.
int failed = 0;
if (thread_in_block() < num_ranks() && !signals.leave_out(thread_in_block()))
    failed = !wait_until_ge(signals.flags + kind * num_ranks() + thread_in_block(), epoch, {phase, thread_in_block(), kind});
return __syncthreads_or(failed) == 0;
// === wrong_tag_only_if_any: 1: were not those that the ranks passed
// EXERCISE-BEGIN 1: 0 is a tag, too: what was there before stays.
-        *peer_ptr(signals.tags + mine, peer) = tag;
+        if (tag != 0) *peer_ptr(signals.tags + mine, peer) = tag;
// === wrong_phase: 2: not about {phase, peer, kind}
// EXERCISE-BEGIN 2: The report names another operation.
-        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {phase, peer, kind});
+        failed |= !wait_until_ge(signals.flags + kind * num_ranks() + peer, epoch, {kPhaseSignal, peer, kind});
// === wrong_threads_of_one_dimension: 1: race: 
// In a block of two dimensions several threads have the same threadIdx.x: one stores the tag behind another's signal.
// EXERCISE-BEGIN 1
-    for (int peer = thread_in_block(); peer < num_ranks(); peer += threads_in_block()) {
+    for (int peer = threadIdx.x; peer < num_ranks(); peer += blockDim.x) {
// === wrong_first_of_each_row: 3: DeadlockError|were told to be the last
// EXERCISE-BEGIN 3: In a block of two dimensions several threads have threadIdx.x 0: each of them counts.
-    if (thread_in_block() == 0) {
+    if (threadIdx.x == 0) {
// === wrong_failure_of_256_threads: 3: `ok` was false in 1 of 1 blocks
// EXERCISE-BEGIN 3: `ok` may be false in any thread of the block.
-    const uint32_t mine = __syncthreads_or(!ok) ? 1 + kFailedBlock : 1;
+    const uint32_t mine = __syncthreads_or(!ok && thread_in_block() < 256) ? 1 + kFailedBlock : 1;

// === right_by_barriers
// EXERCISE-BEGIN 1: The other warps have left the kernel, so a barrier of the block is one of this warp.
         for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
-        __syncwarp();
+        __syncthreads();
@@
         }
-        __syncwarp();
+        __syncthreads();
// EXERCISE-BEGIN 2
for (int i = 0; i < messages; ++i)
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(outbox) + i * bytes, bytes, peer, qp, lane, i);
__syncthreads();
if (threadIdx.x == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// EXERCISE-BEGIN 3
if (threadIdx.x == 0) {
    for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), 1, target, qp);
    nvshmemi_ibgda_quiet(target, qp);
}
__syncthreads();
// EXERCISE-BEGIN 4
-            const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
+            const size_t at = (size_t(channel) * messages + i) * bytes;
@@
             nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
         }
+        __syncthreads();
// === right_by_hand
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
// EXERCISE-BEGIN 2
for (int i = messages - 1; i >= 0; --i)
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(outbox) + i * bytes, bytes, peer, i, lane, i);
__syncwarp();
if (lane > 0) return;
ep::net_quiet(peer);
for (int i = 0; i < messages; ++i) nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
// EXERCISE-BEGIN 3
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(&counters[ep::rank()], 1, target, qp + i);
ep::net_quiet(target);
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
// === right_with_fences
// A fence orders what follows behind what went before, without waiting: enough wherever the source is not reused.
// EXERCISE-BEGIN 2
     if (lane == 0) {
+        ep::net_fence(peer);
+        ep::fence_sys();
+        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
@@
-        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// EXERCISE-BEGIN 3
if (target == ep::rank()) {
    atomicAdd_system(counters + target, static_cast<uint32_t>(times));
    return;
}
nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), times, target, qp);
nvshmemi_ibgda_quiet(target, qp);
// === wrong_reuses_staging: 1: source reused
// EXERCISE-BEGIN 1: One quiet for all messages: the NIC may still have to read what the next message overwrites.
for (int i = 0; i < messages; ++i) {
    for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
    __syncwarp();
    nvshmemi_ibgda_put_nbi_warp(address(inbox + i * bytes), address(staging), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// === wrong_lanes_stage_early: 1: Two barriers
// EXERCISE-BEGIN 1: The lanes do not wait for lane 0's quiet before they stage the next message.
         }
-        __syncwarp();
// === wrong_posts_half_staged: 1: Two barriers
// EXERCISE-BEGIN 1: Lane 0 posts when its own share is staged.
         for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[i * bytes + k];
-        __syncwarp();
// === wrong_counts_at_the_end: 1: one for each message is right, 4
// EXERCISE-BEGIN 1: The receiver hears of all messages when the last one is there.
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    for (size_t k = lane; k < bytes; k += ep::kWarpSize) staging[k] = source[at + k];
    __syncwarp();
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(staging), bytes, peer, qp, lane, i);
    if (lane == 0) { nvshmemi_ibgda_quiet(peer, qp);  }
    __syncwarp();
} if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// === wrong_tail_at_the_end: 4: one for each chunk is right
// EXERCISE-BEGIN 4: One quiet and one addition for all chunks: the receiver begins when all is there.
for (int i = 0; i < messages; ++i) {
    const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(tails + channel, messages, peer, qp);
    nvshmemi_ibgda_quiet(peer, qp);
}
// === wrong_quiet_first: 2: signal overtakes data
// EXERCISE-BEGIN 2: The quiet stands before the puts that it should wait for.
if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
}
if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// === wrong_quiet_each: 2, 4: one for the batch keeps the network busy
// EXERCISE-BEGIN 2: Right, and one message at a time.
for (int i = 0; i < messages; ++i) {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
}
if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
// EXERCISE-BEGIN 4
for (int begin = 0; begin < messages; begin += chunk) {
    const int count = min(chunk, messages - begin);
    for (int i = begin; i < begin + count; ++i) {
        const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
        if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
    }
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
}
// === wrong_other_queue_pair: 2: InfiniBand's quiet waits for one queue pair
// Puts over all queue pairs, a quiet for one of them: enough on EFA, where quiet waits for everything.
// EXERCISE-BEGIN 2
-        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
+        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, i, lane, i);
// === wrong_counts_one: 2: the receiver waits for your counter
// EXERCISE-BEGIN 2: A signal for the batch, where the receiver counts messages.
-        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
+        nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
// === wrong_count_together: 3: One kind of writer
// EXERCISE-BEGIN 3: All ranks add to one counter, which GPUs and NICs then share.
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + target, 1, target, qp);
nvshmemi_ibgda_quiet(target, qp);
// === wrong_count_by_target: 3: grew by 0 where it should grow by 6
// EXERCISE-BEGIN 3: Every rank counts in its own memory.
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + target, 1, ep::rank(), qp);
nvshmemi_ibgda_quiet(target, qp);
// === wrong_quiet_at_the_end: 4: signal overtakes data
// EXERCISE-BEGIN 4: The kernel that was to be repaired, as it was.
for (int begin = 0; begin < messages; begin += chunk) {
    const int count = min(chunk, messages - begin);
    for (int i = begin; i < begin + count; ++i) {
        const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    }
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
}
if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
// === wrong_last_chunk: 4: where it should grow by
// EXERCISE-BEGIN 4: Off by the last chunk, which may be shorter.
-        const int count = min(chunk, messages - begin);
-        for (int i = begin; i < begin + count; ++i) {
+        for (int i = begin; i < min(begin + chunk, messages); ++i) {
@@
-            nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
+            nvshmemi_ibgda_amo_nonfetch_add(tails + channel, chunk, peer, qp);
// === wrong_lane_31_quiets: 4: only a quiet keeps the counter behind
// EXERCISE-BEGIN 4: One lane waits, another one tells.
for (int begin = 0; begin < messages; begin += chunk) {
    const int count = min(chunk, messages - begin);
    for (int i = begin; i < begin + count; ++i) {
        const size_t at = (static_cast<size_t>(channel) * messages + i) * bytes;
        nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
    }
    if (lane == 31) nvshmemi_ibgda_quiet(peer, qp);
    if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(tails + channel, count, peer, qp);
}
// === wrong_no_quiet_after_the_adds: 3: some of its additions were not made yet
// EXERCISE-BEGIN 3: What was posted is done after a quiet only.
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), 1, target, qp);
// === wrong_quiet_of_another_queue_pair: 2: source reused|are wrong in the end
// EXERCISE-BEGIN 2: Counter behind the data, but the outbox is still being read.
-        nvshmemi_ibgda_quiet(peer, qp);
+        nvshmemi_ibgda_quiet(peer, qp + 1);
// === wrong_32_messages: 2: are wrong in the end
// EXERCISE-BEGIN 2: No more messages than lanes.
-    for (int i = 0; i < messages; ++i) {
+    for (int i = 0; i < min(messages, 32); ++i) {
// === wrong_one_of_none: 2: past the end of the symmetric array
// EXERCISE-BEGIN 2: There may be no messages.
int i = 0;
do {
    const size_t at = i * bytes;
    nvshmemi_ibgda_put_nbi_warp(address(inbox + at), address(outbox + at), bytes, peer, qp, lane, i);
} while (++i < messages);
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages, peer, qp);
}
// === wrong_two_quiets: 1: 8 quiets for 4 messages, 1 at a time: 5 would do
// EXERCISE-BEGIN 1: Waits for the counter, too, which nothing needs.
             nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
+            nvshmemi_ibgda_quiet(peer, qp);
// === wrong_nothing_is_still_a_message: 2: counter 0 grew by 1 where it should grow by 0
// EXERCISE-BEGIN 2: No message counts as one.
for (int i = 0; i < messages; ++i)
    nvshmemi_ibgda_put_nbi_warp(address(inbox) + i * bytes, address(outbox) + i * bytes, bytes, peer, qp, lane, i);
if (lane == 0) {
    nvshmemi_ibgda_quiet(peer, qp);
    nvshmemi_ibgda_amo_nonfetch_add(arrived, messages > 0 ? messages : 1, peer, qp);
}
// === wrong_no_bytes_no_counter: 1, 2: DeadlockError
// EXERCISE-BEGIN 2: A message of zero bytes still has a counter, and its receiver waits for that.
+    if (bytes == 0) return;
     for (int i = 0; i < messages; ++i) {
// EXERCISE-BEGIN 1
+    if (bytes == 0) return;
     for (int i = 0; i < messages; ++i) {

// === right_by_hand
// Raw polling, put and fence and signal in three operations, any lane that likes may wait, post and give back.
// EXERCISE-BEGIN 1a
const int64_t missing = int64_t(message) + 1 - ring.num_slots;
return missing > 0 ? missing : 0;
// EXERCISE-BEGIN 1b
const uint64_t seen = *(const volatile uint64_t*)ring.credits;
__threadfence_system();
return message < seen + ring.num_slots;
// EXERCISE-BEGIN 2
net_put_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.peer, ring.queue_pair);
net_fence(ring.peer);
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), 0,
                   &ring.arrived[message % ring.num_slots], message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// EXERCISE-BEGIN 3a
const uint64_t* signal = &ring.arrived[message % ring.num_slots];
while (ld_acquire_sys_u64(signal) <= message) {
}
return true;
// EXERCISE-BEGIN 4a
while (!ring_has_room(ring, message)) {
}
__syncwarp();
char* slot = ring.staging + message % ring.num_slots * ring.slot_bytes;
for (size_t i = lane_id(); i < bytes; i += kWarpSize) slot[i] = static_cast<const char*>(source)[i];
__syncwarp();
if (lane_id() == 31) ring_post(ring, message, bytes);
return true;
// EXERCISE-BEGIN 4b
if (!ring_wait_for_message(ring, message)) return false;
for (size_t i = lane_id(); i < bytes; i += kWarpSize)
    static_cast<char*>(target)[i] = ring_received(ring, message)[i];
__syncwarp();
if (lane_id() == 31) net_add_u64_nbi(ring.credits, 1, ring.peer, int(message % num_queue_pairs()));
return true;
// EXERCISE-BEGIN 5a
const char* from = static_cast<const char*>(source);
while (bytes > 0) {
    const size_t now = bytes < ring.slot_bytes ? bytes : ring.slot_bytes;
    if (!ring_send_warp(ring, from, now, (*message)++)) return false;
    from += now;
    bytes -= now;
}
return true;
// === right_in_library_words
// EXERCISE-BEGIN 1b: wait_until_ge_warp in place of a shuffle, the credit asked for by its number.
return read_signal(ring.credits) >= ring_credits_needed(ring, message);
// EXERCISE-BEGIN 3a
bool came = false;
while (!came) came = wait_until_ge(ring.arrived + message % ring.num_slots, message + 1, {phase, ring.peer, 0});
return came;
// EXERCISE-BEGIN 4a
if (!wait_until_ge_warp(ring.credits, ring_credits_needed(ring, message), {kPhaseCredit, ring.peer, 0})) return false;
copy_bytes<1>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_post(ring, message, bytes);
__syncwarp();
return true;
// EXERCISE-BEGIN 4b
if (!wait_until_ge_warp(ring.arrived + ring_slot(ring, message), message + 1, {kPhaseSignal, ring.peer, 0})) return false;
copy_bytes<1>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_return_credit(ring);
return true;
// EXERCISE-BEGIN 5b
char* to = static_cast<char*>(target);
for (size_t full = bytes / ring.slot_bytes; full > 0; --full, to += ring.slot_bytes)
    if (!ring_receive_warp(ring, to, ring.slot_bytes, (*message)++)) return false;
return bytes % ring.slot_bytes == 0 || ring_receive_warp(ring, to, bytes % ring.slot_bytes, (*message)++);
// === wrong_names_the_message: 3: its report names slot
// EXERCISE-BEGIN 3a: The report is about a slot.
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                     {phase, ring.peer, static_cast<int64_t>(message)});
// === wrong_one_credit_too_few: 1, 4, 5: message 1 needs 0 credits: too few
// EXERCISE-BEGIN 1a: Off by one: the message that has the slot now may still be in it.
const uint64_t slots = ring.num_slots;
return message < slots ? 0 : message - slots;
// === wrong_wraps_around: 1, 4, 5: in 64 bits) credits: too many
// EXERCISE-BEGIN 1a: 0 - 1 in 64 bits: the first message waits for ever.
return message + 1 - ring.num_slots;
// === wrong_relaxed_look: 1: an acquire makes it usable
// EXERCISE-BEGIN 1b: Sees the credit, and nothing orders what it does with the slot after what the receiver did.
return ld_relaxed_sys_u64(ring.credits) >= ring_credits_needed(ring, message);
// === wrong_two_operations: 2, 4, 5: signal overtakes data
// EXERCISE-BEGIN 2: Data, then signal, on the same queue pair: right on InfiniBand only.
net_put_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.peer, ring.queue_pair);
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), 0,
                   ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// === wrong_signal_counts: 2, 4, 5: the receiver waits for the slot's signal
// EXERCISE-BEGIN 2: Adds 1 to the slot's signal: the number of rounds, not of the message.
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes,
                   ring.arrived + ring_slot(ring, message), 1, ring.peer, ring.queue_pair, NetSignal::kAdd);
// === wrong_whole_slots: 2, 4, 5: behind the last byte of a message
// EXERCISE-BEGIN 2: Posts the whole slot, however short the message.
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), ring.slot_bytes,
                   ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// === wrong_one_signal: 2, 3, 4, 5: The signal is the slot's own
// EXERCISE-BEGIN 2: One signal for the whole ring, at both ends.
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.arrived, 1, ring.peer,
                   ring.queue_pair, NetSignal::kAdd);
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived, message + 1, {phase, ring.peer, 0});
// === wrong_waits_for_the_one_before: 3, 4, 5: it shows the message's number plus 1
// EXERCISE-BEGIN 3a: Off by one: satisfied by nothing at all.
return wait_until_ge(ring.arrived + ring_slot(ring, message), message, {phase, ring.peer, ring_slot(ring, message)});
// === wrong_two_credits: 3, 4, 5: credits is 2 on a rank where it should be 1
// EXERCISE-BEGIN 3b: Gives back two slots for each one.
net_atomic_add_u64_nbi(ring.credits, 2, ring.peer, ring.queue_pair);
// === wrong_no_credit: 3, 4, 5: credits is 0 on a rank where it should be 1
// EXERCISE-BEGIN 3b: Never gives a slot back: all is well until the slots are used up.
(void)ring;
// === wrong_credit_first: 4, 5: credit before reuse|between the read and its credit
// EXERCISE-BEGIN 4b: Gives the slot back, then reads it.
int ok = lane_id() == 0 ? ring_wait_for_message(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
if (!ok) return false;
if (lane_id() == 0) ring_return_credit(ring);
__syncwarp();
copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
return true;
// === wrong_half_filled: 4, 5: The lanes need two barriers
// EXERCISE-BEGIN 4a: Lane 0 posts when its own share is in the slot.
-    __syncwarp();  // all lanes have filled in their part before the NIC may read it
// === wrong_fills_before_it_waits: 4, 5: The lanes need two barriers
// EXERCISE-BEGIN 4a: The staging slot is filled at once, and only the post waits for the credit.
copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
__syncwarp();
int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
if (lane_id() == 0 && ok) ring_post(ring, message, bytes);
return ok;
// === wrong_forgets_the_rest: 5: then one with what is left
// EXERCISE-BEGIN 5a: Only full messages, at both ends: what is left over is never sent.
for (size_t at = 0; at + ring.slot_bytes <= bytes; at += ring.slot_bytes)
    if (!ring_send_warp(ring, static_cast<const char*>(source) + at, ring.slot_bytes, (*message)++)) return false;
return true;
// EXERCISE-BEGIN 5b
for (size_t at = 0; at + ring.slot_bytes <= bytes; at += ring.slot_bytes)
    if (!ring_receive_warp(ring, static_cast<char*>(target) + at, ring.slot_bytes, (*message)++)) return false;
return true;
// === wrong_starts_at_zero: 5: *message counts all of them
// EXERCISE-BEGIN 5a: Every stream counts its messages from 0 again: right for the first one.
uint64_t number = 0;
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++number) {
    const size_t rest = bytes - at, now = rest < ring.slot_bytes ? rest : ring.slot_bytes;
    if (!ring_send_warp(ring, static_cast<const char*>(source) + at, now, number)) return false;
}
*message += number;
return true;
// === wrong_needs_32_bits: 1, 4, 5: too few
// EXERCISE-BEGIN 1a: Message 2^32 needs more credits than message 1.
const uint64_t slots = ring.num_slots;
const uint32_t number = message;
return number < slots ? 0 : number - slots + 1;
// === wrong_credit_on_queue_pair_0: 3: came before what your function had posted
// EXERCISE-BEGIN 3b: The credit goes another way than the data.
net_atomic_add_u64_nbi(ring.credits, 1, ring.peer);
// === wrong_lanes_of_the_block: 4, 5: received bytes are wrong|bytes of
// EXERCISE-BEGIN 4b: A warp that is not the first of its block.
-    copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
+    copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, thread_in_block(), kWarpSize);
// === wrong_size_of_16_bits: 5: bytes of 140001 are wrong
// EXERCISE-BEGIN 5a: Of a message of 66000 bytes, 464 are sent.
-        if (!ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message)) return false;
+        const auto size = static_cast<unsigned short>(rest < ring.slot_bytes ? rest : ring.slot_bytes);
+        if (!ring_send_warp(ring, from + at, size, *message)) return false;
// === wrong_phase: 3: not about the `phase` that was passed
// EXERCISE-BEGIN 3a: Reports another phase than the one it was given.
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                     {kPhaseSignal, ring.peer, ring_slot(ring, message)});
// === wrong_peer_of_the_report: 3: not about the `phase` that was passed and the ring's peer
// EXERCISE-BEGIN 3a: Reports a message in place of its slot, and no peer.
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1, {phase, -1, static_cast<int64_t>(message)});
// === wrong_stream_sends_on: 5: a counter grew all the same
// EXERCISE-BEGIN 5a: Sends the rest after a message that found no room.
const char* const from = static_cast<const char*>(source);
bool ok = true;
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++*message) {
    const size_t rest = bytes - at;
    ok &= ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message);
}
return ok;
// === wrong_stream_receives_on: 5: a counter grew all the same|data was read all the same
// EXERCISE-BEGIN 5b: The last message decides, and the others are read all the same.
char* const to = static_cast<char*>(target);
bool ok = true;
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++*message) {
    const size_t rest = bytes - at;
    ok = ring_receive_warp(ring, to + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message);
}
return ok;
// === wrong_message_of_32_bits: 5: *message
// EXERCISE-BEGIN 5a: *message has 64 bits.
const char* const from = static_cast<const char*>(source);
unsigned m = static_cast<unsigned>(*message);
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++m) {
    const size_t rest = bytes - at;
    if (!ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, m)) return false;
}
*message = m;
return true;
// EXERCISE-BEGIN 5b
char* const to = static_cast<char*>(target);
unsigned m = static_cast<unsigned>(*message);
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++m) {
    const size_t rest = bytes - at;
    if (!ring_receive_warp(ring, to + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, m)) return false;
}
*message = m;
return true;
// === wrong_aligned_source: 4, 5: KernelFault
// EXERCISE-BEGIN 4a: Reads 16 bytes at a time, wherever the source begins.
-    copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
+    char* const to = ring_staging(ring, message);
+    const size_t vectors = bytes / 16;
+    for (size_t i = lane_id(); i < vectors; i += kWarpSize)
+        reinterpret_cast<int4*>(to)[i] = ld_na_v4(static_cast<const int4*>(source) + i);
+    for (size_t i = 16 * vectors + lane_id(); i < bytes; i += kWarpSize) to[i] = static_cast<const char*>(source)[i];
// === wrong_receives_aligned: 4, 5: KernelFault
// EXERCISE-BEGIN 4b: Writes 16 bytes at a time, wherever the target begins.
-    copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
+    const char* const from = ring_received(ring, message);
+    const size_t vectors = bytes / 16;
+    for (size_t i = lane_id(); i < vectors; i += kWarpSize) static_cast<int4*>(target)[i] = ld_na_v4(reinterpret_cast<const int4*>(from) + i);
+    for (size_t i = 16 * vectors + lane_id(); i < bytes; i += kWarpSize) static_cast<char*>(target)[i] = from[i];
// === wrong_stream_waits_for_the_block: 5: divergent barrier
// EXERCISE-BEGIN 5a: A barrier of the block between two messages of a warp.
         if (!ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message)) return false;
+        __syncthreads();
// === wrong_empty_posts_nothing: 2, 4: DeadlockError
// EXERCISE-BEGIN 2: A message without bytes is a message: its signal must come.
if (bytes == 0) return;
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes,
                   ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// === wrong_empty_is_skipped: 4: returned false although nothing was late|DeadlockError
// EXERCISE-BEGIN 4a: Both ends leave a message without bytes out, and the next one waits for its credit.
+    if (bytes == 0) return true;
     int ok = lane_id() == 0 ? ring_wait_for_room(ring, message) : 0;
// EXERCISE-BEGIN 4b
+    if (bytes == 0) return true;
     int ok = lane_id() == 0 ? ring_wait_for_message(ring, message) : 0;
// === wrong_barrier_of_the_block: 4, 5: divergent barrier
// EXERCISE-BEGIN 4a: A barrier of the block, where other warps do something else.
-    __syncwarp();  // all lanes have filled in their part before the NIC may read it
+    __syncthreads();
// === wrong_barrier_in_one_dimension: 4, 5: divergent barrier
// EXERCISE-BEGIN 4a: A barrier of the block where one warp calls, but for launches of two dimensions.
     copy_bytes<kWarpUnroll>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
+    if (blockDim.y > 1)
@@
     __syncwarp();  // all lanes have filled in their part before the NIC may read it
+    else
+        __syncthreads();

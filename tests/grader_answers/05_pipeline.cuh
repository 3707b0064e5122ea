// === right_by_hand
// Raw polling, put and fence and signal in three operations, any lane that likes posts, gives credits and waits.
// EXERCISE-BEGIN 1
const int64_t missing = int64_t(chunk) + 1 - ring.num_slots;
return missing > 0 ? missing : 0;
// EXERCISE-BEGIN 2
char* from = slot_of(ring.staging, streams, ring, peer, chunk);
char* to = slot_of(ring.inbox, streams, ring, ep::rank(), chunk);
size_t bytes = fill_slot(from, streams, ring, peer, chunk);
if (ep::lane_id() == 31) {
    ep::net_put_nbi(to, from, bytes, peer, ep::num_queue_pairs() - 1);
    ep::net_fence(peer);
    ep::net_put_signal_nbi(to, from, 0, arrived_of(ring, ep::rank(), chunk), chunk + 1, peer,
                           ep::num_queue_pairs() - 1, ep::NetSignal::kSet);
}
__syncwarp();
// EXERCISE-BEGIN 3
ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
if (ep::lane_id() == 7) ep::net_atomic_add_u64_nbi(&ring.credits[ep::rank()], 1, peer, int(chunk % ep::num_queue_pairs()));
return header;
// EXERCISE-BEGIN 4
uint64_t chunk = 0;
do {
    const uint64_t needed = chunk < uint64_t(ring.num_slots) ? 0 : chunk + 1 - ring.num_slots;
    while (ep::ld_acquire_sys_u64(ring.credits + peer) < needed) {
    }
    __syncwarp();
    send_chunk(streams, ring, peer, chunk);
} while (++chunk < chunks);
__syncwarp();
ep::net_quiet();
// EXERCISE-BEGIN 5
uint64_t sent = 0, taken = 0;
int rows = 0, done = 0;
while (!done || sent < chunks) {
    bool came = false, room = false;
    if (ep::lane_id() == 0) {
        came = !done && ep::ld_acquire_sys_u64(arrived_of(ring, peer, taken)) > taken;
        room = sent < chunks && ep::ld_acquire_sys_u64(ring.credits + peer) + ring.num_slots > sent;
    }
    came = __shfl_sync(ep::kFullWarp, came, 0);
    room = __shfl_sync(ep::kFullWarp, room, 0);
    __syncwarp();
    if (room) send_chunk(streams, ring, peer, sent++);
    if (came) {
        ChunkHeader header = take_chunk(streams, ring, peer, taken++, rows);
        rows += header.rows;
        done = header.is_last;
    }
}
if (ep::lane_id() == 13) streams.received[peer] = rows;
ep::net_quiet(peer);
// === right_with_quiets
// A quiet after each chunk makes one staging slot enough: slower, and right. Rests are sent in the same loop.
// EXERCISE-BEGIN 2
char* from = slot_of(ring.staging, streams, ring, peer, 0);
size_t bytes = fill_slot(from, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), from, bytes,
                           arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
    ep::net_quiet(peer);
}
__syncwarp();
// EXERCISE-BEGIN 5
constexpr uint64_t kNever = ~0ull;
uint64_t sent = 0, taken = 0;
int rows = 0;
bool is_last = false;
while (!is_last || sent < chunks) {
    int ready = ep::wait_until_either_ge_warp(arrived_of(ring, peer, taken), is_last ? kNever : taken + 1,
                                              ring.credits + peer, sent < chunks ? credits_for(ring, sent) : kNever,
                                              {ep::kPhaseSignal, peer, 0});
    if (ready == 0) return;
    if (ready & 2) send_chunk(streams, ring, peer, sent++);
    if (ready & 1) {
        ChunkHeader header = take_chunk(streams, ring, peer, taken++, rows);
        rows += header.rows;
        is_last = header.is_last;
    }
}
if (ep::lane_id() == 0) streams.received[peer] = rows;
if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_one_credit_too_few: 1, 4, 5: chunk 1 needs 0 credits: too few
// EXERCISE-BEGIN 1: One chunk too many under way: it lands on one that has not been taken out.
const uint64_t slots = ring.num_slots;
return chunk < slots ? 0 : chunk - slots;
// === wrong_one_credit_too_many: 1, 4, 5: chunk 0 needs 1 credits: too many
// EXERCISE-BEGIN 1: With one slot the first chunk waits for its own credit; with more, one slot stays empty.
const uint64_t slots = ring.num_slots;
return chunk + 1 < slots ? 0 : chunk + 2 - slots;
// === wrong_wraps_around: 1, 4, 5: in 64 bits) credits: too many
// EXERCISE-BEGIN 1
return chunk + 1 - ring.num_slots;
// === wrong_two_operations: 2, 4, 5: signal overtakes data
// EXERCISE-BEGIN 2: The data, and then the arrival, on the same queue pair: right on InfiniBand, wrong on EFA.
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    char* const target = slot_of(ring.inbox, streams, ring, ep::rank(), chunk);
    ep::net_put_nbi(target, staging, bytes, peer);
    ep::net_put_signal_nbi(target, staging, 0, arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0,
                           ep::NetSignal::kSet);
}
// === wrong_arrival_first: 2, 4, 5: One lane posts one operation, data and then arrival
// EXERCISE-BEGIN 2: The arrival, and then the data: wrong everywhere.
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    char* const target = slot_of(ring.inbox, streams, ring, ep::rank(), chunk);
    ep::net_put_signal_nbi(target, staging, 0, arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0,
                           ep::NetSignal::kSet);
    ep::net_put_nbi(target, staging, bytes, peer);
}
// === wrong_one_staging_slot: 2, 4, 5: Each chunk has its own staging slot
// EXERCISE-BEGIN 2: All chunks are staged in one slot, without waiting until the NIC has read it.
char* const staging = slot_of(ring.staging, streams, ring, peer, 0);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                           arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
}
// === wrong_one_arrival: 2, 4, 5: signal overtakes data|What is waited for was never written
// EXERCISE-BEGIN 2: One arrival for all slots: on EFA chunk 1 may be there before chunk 0.
-        const int qp = static_cast<int>(chunk % ep::num_queue_pairs());
@@
-                               arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, qp, ep::NetSignal::kSet);
+                               arrived_of(ring, ep::rank(), 0), 1, peer);
// === wrong_all_lanes_post: 2, 4, 5: One lane posts one operation
// EXERCISE-BEGIN 2: 32 posts of the same chunk: the late ones read a slot that has been filled again.
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                       arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
// === wrong_peers_inbox: 2, 4, 5: in this rank's part of the peer's memory
// EXERCISE-BEGIN 2: Into the part of the inbox that belongs to another rank's chunks.
char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
if (ep::lane_id() == 0) {
    ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, peer, chunk), staging, bytes,
                           arrived_of(ring, peer, chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
}
// === wrong_credit_first: 3, 5: First read, then give the slot back
// EXERCISE-BEGIN 3: The slot is given back before it has been read.
if (ep::lane_id() == 0) ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
return empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
// === wrong_no_credit: 3, 5: has 0 of its credits
// EXERCISE-BEGIN 3
return empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
// === wrong_credit_of_every_lane: 3, 5: has 64 of its credits|has 160 of its credits
// EXERCISE-BEGIN 3: 32 credits per chunk.
const ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
return header;
// === wrong_own_credits: 3, 5: of its credits
// EXERCISE-BEGIN 3: The credit goes to a counter of the receiver, where the sender never looks.
const ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
if (ep::lane_id() == 0) ep::atom_add_release_sys_u64(ring.credits + peer, 1);
return header;
// === wrong_does_not_ask: 4: once wait_for_credit says so
// EXERCISE-BEGIN 4: The sender does not wait for credits.
for (uint64_t chunk = 0; chunk < chunks; ++chunk) send_chunk(streams, ring, peer, chunk);
if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_asks_afterwards: 4: once wait_for_credit says so
// EXERCISE-BEGIN 4: The first chunks need no credit, and so this passes for short streams.
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    send_chunk(streams, ring, peer, chunk);
    if (!wait_for_credit(ring, peer, chunk)) return;
}
if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_no_quiet: 4: the caller, who uses the staging buffer
// EXERCISE-BEGIN 4: The kernel ends while the NIC still reads from the staging buffer.
-        trace_slots_in_use(ring, peer, chunk + 1);
@@
-    if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_one_at_a_time: 4: the sender may be n chunks ahead
// EXERCISE-BEGIN 4: Each chunk waits until all before it have been taken out: one slot would do.
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    if (!ep::wait_until_ge_warp(ring.credits + peer, chunk, {ep::kPhaseCredit, peer, 0})) return;
    send_chunk(streams, ring, peer, chunk);
}
if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_sends_first: 5: never for an arrival alone, nor for a credit alone
// EXERCISE-BEGIN 5: The whole stream, and then the peer's: both wait for credits, and no one receives.
send_pipelined(streams, ring, peer);
receive_pipelined(streams, ring, peer);
// === wrong_receives_first: 5: never for an arrival alone, nor for a credit alone
// EXERCISE-BEGIN 5: The peer's stream, and then its own: both wait for the first chunk.
receive_pipelined(streams, ring, peer);
send_pipelined(streams, ring, peer);
// === wrong_waits_for_credit_inside: 5: never for an arrival alone, nor for a credit alone
// EXERCISE-BEGIN 5: An arrival wakes it, and then it waits for a credit alone.
-        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
+        if (sent < chunks) {
+            if (!wait_for_credit(ring, peer, sent)) return;
+            send_chunk(streams, ring, peer, sent++);
+        }
@@
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        {ep::kPhaseSignal, peer, 0});
@@
-        if (ready & 2) send_chunk(streams, ring, peer, sent++);
// === wrong_forgets_the_rest: 5: go on until both directions are done
// EXERCISE-BEGIN 5: When the peer's last chunk has come, it stops.
-        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
@@
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        {ep::kPhaseSignal, peer, 0});
@@
-    for (; sent < chunks; ++sent) {  // nothing more comes from there
-        if (!wait_for_credit(ring, peer, sent)) return;
-        send_chunk(streams, ring, peer, sent);
-    }
// === wrong_sends_beyond_the_end: 5: Send all chunks and no more
// EXERCISE-BEGIN 5: There is room, and so it sends, also when there is nothing more to send.
-    constexpr uint64_t kNever = ~0ull;
@@
-        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
@@
-                                                        sent < chunks ? credits_for(ring, sent) : kNever,
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        credits_for(ring, sent),
+                                                        {ep::kPhaseSignal, peer, 0});
// === wrong_merged_rest_without_credits: 5: of its credits
// EXERCISE-BEGIN 5: The rest of the stream goes out without asking.
-        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
@@
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        {ep::kPhaseSignal, peer, 0});
@@
-    for (; sent < chunks; ++sent) {  // nothing more comes from there
-        if (!wait_for_credit(ring, peer, sent)) return;
-        send_chunk(streams, ring, peer, sent);
-    }
+    for (; sent < chunks; ++sent) send_chunk(streams, ring, peer, sent);
// === wrong_merged_without_quiet: 5: the staging slots belong to the caller again
// EXERCISE-BEGIN 5: Does not wait for what is still under way.
-        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
@@
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        {ep::kPhaseSignal, peer, 0});
@@
-    if (ep::lane_id() == 0) {
-        streams.received[peer] = rows;
-        ep::net_quiet(peer);
-    }
+    if (ep::lane_id() == 0) streams.received[peer] = rows;
// === wrong_credits_of_32_bits: 1: too few
// EXERCISE-BEGIN 1: Chunks go on beyond 32 bits.
const uint32_t slots = ring.num_slots, number = chunk;
return number < slots ? 0 : number + 1 - slots;
// === wrong_sends_after_the_limit: 4: nothing was taken out of two slots
// EXERCISE-BEGIN 4: A wait that failed is no credit.
for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    wait_for_credit(ring, peer, chunk);
    send_chunk(streams, ring, peer, chunk);
}
if (ep::lane_id() == 0) ep::net_quiet(peer);
// === wrong_slots_of_8_bits: 1: too many
// EXERCISE-BEGIN 1: A ring of 260 slots has four.
const uint8_t slots = static_cast<uint8_t>(ring.num_slots);
return chunk < slots ? 0 : chunk + 1 - slots;
// === wrong_wakes_for_nothing: 5: of its waits were ended by credits alone
// EXERCISE-BEGIN 5: When all is sent, each look finds credits for a chunk that does not exist: no time limit runs.
-    constexpr uint64_t kNever = ~0ull;
@@
-                                                        sent < chunks ? credits_for(ring, sent) : kNever,
-                                                        {ep::kPhaseSignal, peer, slot});
+                                                        credits_for(ring, sent), {ep::kPhaseSignal, peer, slot});
@@
-        if (ready & 2) send_chunk(streams, ring, peer, sent++);
+        if ((ready & 2) && sent < chunks) send_chunk(streams, ring, peer, sent++);
// === wrong_gives_up_and_writes: 5: streams.received was written all the same
// EXERCISE-BEGIN 5: After the limit it writes how many rows have come, and sends on.
-        if (ready == 0) return;  // the time limit
+        if (ready == 0) break;
// === wrong_received_grows: 5: streams.received was never written
// EXERCISE-BEGIN 5: Of an empty stream it leaves what was there.
-        streams.received[peer] = rows;
+        if (rows > 0) streams.received[peer] = rows;
// === wrong_arrival_of_8_bits: 2: DeadlockError|the arrival of slot
// EXERCISE-BEGIN 2: After 255 chunks the arrival begins again.
-                               arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, qp, ep::NetSignal::kSet);
+                               arrived_of(ring, ep::rank(), chunk), static_cast<uint8_t>(chunk + 1), peer, qp, ep::NetSignal::kSet);

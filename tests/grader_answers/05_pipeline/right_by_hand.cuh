// Raw polling, put and fence and signal in three operations, any lane that likes posts, gives credits and waits.
// EXERCISE-BEGIN 1
const int64_t missing = int64_t(chunk) + 1 - ring.num_slots;
return missing > 0 ? missing : 0;
// EXERCISE-END 1
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
// EXERCISE-END 2
// EXERCISE-BEGIN 3
ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
if (ep::lane_id() == 7) ep::net_atomic_add_u64_nbi(&ring.credits[ep::rank()], 1, peer, int(chunk % ep::num_queue_pairs()));
return header;
// EXERCISE-END 3
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
// EXERCISE-END 4
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
// EXERCISE-END 5

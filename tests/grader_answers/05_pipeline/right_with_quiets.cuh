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
// EXERCISE-END 2
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
// EXERCISE-END 5

// 32 credits per chunk.
// EXERCISE-BEGIN 3
const ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
return header;
// EXERCISE-END 3

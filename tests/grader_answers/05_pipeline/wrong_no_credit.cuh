// EXERCISE-BEGIN 3
return empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows_before);
// EXERCISE-END 3

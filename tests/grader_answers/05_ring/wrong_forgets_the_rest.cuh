// Only full messages, at both ends: what is left over is never sent.
// EXERCISE-BEGIN 5a
for (size_t at = 0; at + ring.slot_bytes <= bytes; at += ring.slot_bytes)
    if (!ring_send_warp(ring, static_cast<const char*>(source) + at, ring.slot_bytes, (*message)++)) return false;
return true;
// EXERCISE-END 5a
// EXERCISE-BEGIN 5b
for (size_t at = 0; at + ring.slot_bytes <= bytes; at += ring.slot_bytes)
    if (!ring_receive_warp(ring, static_cast<char*>(target) + at, ring.slot_bytes, (*message)++)) return false;
return true;
// EXERCISE-END 5b

// Every stream counts its messages from 0 again: right for the first one.
// EXERCISE-BEGIN 5a
uint64_t number = 0;
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++number) {
    const size_t rest = bytes - at, now = rest < ring.slot_bytes ? rest : ring.slot_bytes;
    if (!ring_send_warp(ring, static_cast<const char*>(source) + at, now, number)) return false;
}
*message += number;
return true;
// EXERCISE-END 5a

// *message has 64 bits.
// EXERCISE-BEGIN 5a
const char* const from = static_cast<const char*>(source);
unsigned m = static_cast<unsigned>(*message);
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++m) {
    const size_t rest = bytes - at;
    if (!ring_send_warp(ring, from + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, m)) return false;
}
*message = m;
return true;
// EXERCISE-END 5a
// EXERCISE-BEGIN 5b
char* const to = static_cast<char*>(target);
unsigned m = static_cast<unsigned>(*message);
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++m) {
    const size_t rest = bytes - at;
    if (!ring_receive_warp(ring, to + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, m)) return false;
}
*message = m;
return true;
// EXERCISE-END 5b

// The last message decides, and the others are read all the same.
// EXERCISE-BEGIN 5b
char* const to = static_cast<char*>(target);
bool ok = true;
for (size_t at = 0; at < bytes; at += ring.slot_bytes, ++*message) {
    const size_t rest = bytes - at;
    ok = ring_receive_warp(ring, to + at, rest < ring.slot_bytes ? rest : ring.slot_bytes, *message);
}
return ok;
// EXERCISE-END 5b

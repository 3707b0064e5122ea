// With one slot the first chunk waits for its own credit; with more, one slot stays empty.
// EXERCISE-BEGIN 1
const uint64_t slots = ring.num_slots;
return chunk + 1 < slots ? 0 : chunk + 2 - slots;
// EXERCISE-END 1

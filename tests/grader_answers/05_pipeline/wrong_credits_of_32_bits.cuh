// Chunks go on beyond 32 bits.
// EXERCISE-BEGIN 1
const uint32_t slots = ring.num_slots, number = chunk;
return number < slots ? 0 : number + 1 - slots;
// EXERCISE-END 1

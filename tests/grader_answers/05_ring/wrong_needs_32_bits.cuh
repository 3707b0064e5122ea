// Message 2^32 needs more credits than message 1.
// EXERCISE-BEGIN 1a
const uint64_t slots = ring.num_slots;
const uint32_t number = message;
return number < slots ? 0 : number - slots + 1;
// EXERCISE-END 1a

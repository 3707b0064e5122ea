// Off by one: the message that has the slot now may still be in it.
// EXERCISE-BEGIN 1a
const uint64_t slots = ring.num_slots;
return message < slots ? 0 : message - slots;
// EXERCISE-END 1a
